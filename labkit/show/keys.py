"""Handlers of keys within a widget. A style's handler runs once it has loaded; it reaches the box that it stands in."""

# Keys stay in the box: the notebook's shortcuts would hear them ("d d" deletes the cell, also when a button has the
# focus). JupyterLab's own attribute against that, data-lm-suppress-shortcuts, counts on the focused element alone, not
# on what is around it, and ipywidgets sets no attributes.
DEAF = """<style onload="this.closest('.widget-box').onkeydown = event => event.stopPropagation()"></style>"""

# And Enter goes on from a field to the next one, or to the button, as Tab does: heard on its way down, since a field of
# ipywidgets lets no key come up again. A field that is left has told the kernel all that was typed; one that has the
# focus may not have, since its messages wait for one another: so no key in a field ends the entry.
ENTER_GOES_ON = """<style onload="
    const box = this.closest('.widget-box');
    box.onkeydown = event => event.stopPropagation();
    box.addEventListener('keydown', event => {
        if (event.key != 'Enter' || event.target.type != 'text') return;
        event.preventDefault();
        const stops = [...box.querySelectorAll('input, button')];
        stops[stops.indexOf(event.target) + 1].focus();
    }, true);"></style>"""
