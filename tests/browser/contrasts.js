// How far texts stand out from what is behind them, as WCAG counts: 1 to 21.
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
// [text, contrast] of each text in the outputs of a notebook
const inOutputs = () => {
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
};
// [text, contrast, what is behind it] of each text in the SVGs of a page
const inPictures = () => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    svg.scrollIntoView();
    for (const text of svg.querySelectorAll('text')) {
      text.scrollIntoView({block: 'center', inline: 'center'});
      const box = text.getBoundingClientRect();
      let worst = [21, ''];
      for (const share of [0.02, 0.25, 0.5, 0.75, 0.98]) {  // along the line
        const stack = document.elementsFromPoint(box.left + share * box.width, box.top + box.height / 2);
        let back = [255, 0, 255, 1];
        for (const shape of stack.slice(0, stack.indexOf(svg)).reverse()) {
          if (!(shape instanceof SVGGeometryElement)) continue;
          const look = getComputedStyle(shape);
          if (look.fill === 'none' || look.fill.startsWith('url')) continue;
          const paint = rgba(look.fill);
          paint[3] *= look.fillOpacity * look.opacity;
          back = over(paint, back);
        }
        const [dark, bright] = [light(rgba(getComputedStyle(text).fill)), light(back)].sort((a, b) => a - b);
        const contrast = (bright + 0.05) / (dark + 0.05);
        if (contrast < worst[0]) worst = [contrast, back.slice(0, 3).map(Math.round).join(' ')];
      }
      found.push([text.textContent, ...worst]);
    }
  }
  return found;
};
