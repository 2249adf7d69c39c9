"""Values that show themselves: what `lab.look`, `%%flow` and `lab.last` return. No torch here."""
