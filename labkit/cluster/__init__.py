"""Starting, healing and stopping engines: the only room that imports ipyparallel; it never imports torch."""
