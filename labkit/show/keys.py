"""Keep keys within a widget. A style's handler runs once it has loaded; it reaches the box that it stands in."""

# The notebook's shortcuts would hear them ("d d" deletes the cell, also when a button has the focus). JupyterLab's own
# attribute against that, data-lm-suppress-shortcuts, counts on the focused element alone, not on what is around it, and
# ipywidgets sets no attributes.
DEAF = """<style onload="this.closest('.widget-box').onkeydown = event => event.stopPropagation()"></style>"""
