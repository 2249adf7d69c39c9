// [text, contrast] of each text in an output: how far it stands out from what is behind it, as WCAG counts (1 to 21).
() => {
  const rgba = colour => {
    const context = new OffscreenCanvas(1, 1).getContext('2d');
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].map((v, i) => i < 3 ? v : v / 255);
  };
  const over = (top, below) => below.map((v, i) => i < 3 ? top[3] * top[i] + (1 - top[3]) * v : 1);
  const light = colour => colour.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    const below = element.parentElement ? behind(element.parentElement) : [255, 255, 255, 1];
    return over(rgba(getComputedStyle(element).backgroundColor), below);
  };
  const found = [];
  for (const output of document.querySelectorAll('.jp-OutputArea-output')) {
    const walker = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
      if (!text || !element.checkVisibility() || element.closest('style, script, :disabled')) continue;
      const back = behind(element), front = over(rgba(getComputedStyle(element).color), back);
      const [dark, bright] = [light(front), light(back)].sort((a, b) => a - b);
      found.push([text, (bright + 0.05) / (dark + 0.05)]);
    }
  }
  return found;
}
