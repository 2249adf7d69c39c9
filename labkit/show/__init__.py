"""Values that show themselves: what `lab.look`, `%%flow`, `lab.timeline` and `lab.steps` return. No torch here."""
