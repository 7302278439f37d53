// One timeline on the page: the pool, marks over it, strips below it.

const GUTTER = 62; // of the axis of addresses, CSS pixels
const AXIS = 22; // of the axis of time

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className || '';
  made.textContent = text || '';
  return made;
}

class Panel {
  constructor(model, view, mostBytes) {
    this.model = model;
    this.view = view;
    this.mostBytes = mostBytes;
    this.strips = new Strips(model);
    this.hovered = -1;
    this.moment = model.peakMoment;
    this.singled = null;
    this.build();
  }

  build() {
    const {model} = this;
    this.root = element('figure', 'panel');
    const caption = element('figcaption');
    caption.append(element('strong', '', model.title), element('span', '', this.summary()));
    this.stage = element('div', 'stage');
    this.stage.tabIndex = 0;
    this.stage.setAttribute('role', 'img');
    this.stage.setAttribute('aria-label', `${model.title}: ${this.summary()}`);
    this.pool = element('canvas', 'pool');
    this.marks = element('canvas', 'marks');
    this.below = element('canvas', 'below');
    this.stage.append(this.pool, this.marks);
    this.root.append(caption, this.stage, this.below);
  }

  summary() {
    const {model} = this;
    const cap = model.budgetBytes ? ` of ${formatBytes(model.budgetBytes)}` : '';
    const parts = [`peak ${formatBytes(model.peakBytes)}${cap}`, `${formatCount(model.moments)} operations`];
    if (model.evictions || model.recomputations) {
      parts.push(`${formatCount(model.evictions)} evictions`);
      parts.push(`${formatCount(model.recomputations)} recomputed`);
    }
    if (model.hasSeconds) {
      const seconds = formatSeconds(model.columns.seconds[model.moments]);
      parts.push(model.measured ? seconds : `about ${seconds}`);
    }
    return parts.join(' · ');
  }

  // Sizes the canvases; `colors` are those of the style sheet.
  resize(palette, colors) {
    this.ratio = window.devicePixelRatio || 1;
    this.colors = colors;
    const box = this.stage.getBoundingClientRect();
    this.width = Math.max(40, Math.floor(box.width) - GUTTER);
    this.height = Math.max(80, Math.floor(box.height) - AXIS);
    const size = (canvas, width, height) => {
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    };
    size(this.pool, this.width, this.height);
    size(this.marks, this.width + GUTTER, this.height + AXIS);
    size(this.below, this.width + GUTTER, STRIPS_HEIGHT);
    this.context = this.pool.getContext('2d', {alpha: false});
    this.image = this.context.createImageData(this.pool.width, this.pool.height);
    this.raster = new Raster(this.model, palette, this.ratio);
    this.palette = palette;
  }

  range() {
    const {view, mostBytes} = this;
    const [low, high] = [view.low * mostBytes, view.high * mostBytes];
    return {left: view.left, right: view.right, low, high};
  }

  draw() {
    this.raster.paint(this.image, this.range(), this.singled);
    this.context.putImageData(this.image, 0, 0);
    this.drawMarks();
    this.drawBelow();
  }

  cleared(canvas) {
    const context = canvas.getContext('2d');
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.font = '11px system-ui, sans-serif';
    return context;
  }

  drawMarks() {
    const context = this.cleared(this.marks);
    this.drawAxes(context);
    context.save();
    context.translate(GUTTER, 0);
    context.beginPath();
    context.rect(0, 0, this.width, this.height);
    context.clip();
    this.drawBeyond(context);
    this.drawNames(context);
    this.drawMoment(context, this.height);
    this.drawHovered(context);
    context.restore();
  }

  drawBelow() {
    const context = this.cleared(this.below);
    context.translate(GUTTER, 0);
    this.strips.draw(context, this.view, this.width, this.colors, this.mostBytes);
    this.drawMoment(context, STRIPS_HEIGHT);
    context.translate(-GUTTER, 0);
    context.fillStyle = this.colors.muted;
    context.textAlign = 'right';
    context.fillText(formatBytes(this.mostBytes), GUTTER - 8, STRIP_GAP + 9);
    context.fillText('100%', GUTTER - 8, 2 * STRIP_GAP + STRIPS[0].height + 9);
    context.textAlign = 'left';
  }

  drawAxes(context) {
    const range = this.range();
    context.fillStyle = this.colors.muted;
    context.strokeStyle = this.colors.line;
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    for (const tick of ticksOf(range.low, range.high, this.height / 56, 2)) {
      const y = Math.round(this.yOf(tick)) + 0.5;
      context.fillText(formatTick(tick), GUTTER - 8, Math.min(this.height - 6, Math.max(6, y)));
      context.fillRect(GUTTER - 4, y - 0.5, 4, 1);
    }
    context.textAlign = 'center';
    const {whole, axis} = this.model;
    const count = this.width / 110;
    for (const tick of ticksOf(range.left * whole, range.right * whole, count, 10)) {
      const x = GUTTER + this.xOf(tick / whole);
      const text = axis === 'seconds' ? formatSeconds(tick) : formatCount(tick);
      context.fillText(text, Math.min(this.width + GUTTER - 22, x), this.height + 13);
      context.fillRect(Math.round(x), this.height, 1, 4);
    }
    context.textAlign = 'left';
    context.textBaseline = 'alphabetic';
  }

  // Addresses beyond the pool, where another timeline has a larger one.
  drawBeyond(context) {
    const y = this.yOf(this.model.poolBytes);
    if (y > 0) {
      context.fillStyle = this.colors.beyond;
      context.fillRect(0, 0, this.width, y);
      context.fillStyle = this.colors.line;
      context.fillRect(0, Math.round(y) - 1, this.width, 1);
    }
  }

  // The operations' names, in rectangles that have room for them.
  drawNames(context) {
    context.textBaseline = 'middle';
    for (const i of this.raster.named) {
      const [left, right, top, bottom] = this.boxOf(i);
      const [x, end] = [Math.max(0, left), Math.min(this.width, right)];
      const y = (Math.max(0, top) + Math.min(this.height, bottom)) / 2;
      this.drawName(context, i, x, end, y);
    }
    context.textBaseline = 'alphabetic';
  }

  drawName(context, i, x, end, y) {
    const {model} = this;
    const shape = model.word(model.label[i], 'Shape');
    let text = `${model.word(model.label[i], 'Operation')} ${shape}`.trim();
    const fits = (end - x - 10) / context.measureText(text).width;
    text = fits < 1 ? `${text.slice(0, Math.max(1, Math.floor(text.length * fits) - 2))}…` : text;
    context.fillStyle = inkOn(this.palette.colorOf(i));
    context.fillText(text, x + 6, y + 0.5);
  }

  drawMoment(context, height) {
    const {model} = this;
    const [x, end] = [this.xOf(model.position[this.moment]), this.xOf(model.position[this.moment + 1])];
    context.fillStyle = this.colors.cursorFill;
    context.fillRect(x, 0, Math.max(1, end - x), height);
    context.fillStyle = this.colors.cursor;
    context.fillRect(Math.round(x), 0, 1, height);
    if (end - x > 3) {
      context.fillRect(Math.round(end) - 1, 0, 1, height);
    }
  }

  // The hovered residence, the others of its storage, and arrows from eviction to recomputation.
  drawHovered(context) {
    if (this.hovered < 0) {
      return;
    }
    const all = this.model.residencesOf(this.model.storage[this.hovered]);
    context.strokeStyle = this.colors.cursor;
    context.lineWidth = 2;
    let before = null;
    for (const i of all.length ? all : [this.hovered]) {
      const [left, right, top, bottom] = this.boxOf(i);
      context.setLineDash(i === this.hovered ? [] : [4, 3]);
      context.strokeRect(left, top, Math.max(2, right - left), Math.max(2, bottom - top));
      if (before !== null) {
        this.arrow(context, before[1], (before[2] + before[3]) / 2, left, (top + bottom) / 2);
      }
      before = [left, right, top, bottom];
    }
    context.setLineDash([]);
    context.lineWidth = 1;
  }

  arrow(context, x, y, endX, endY) {
    const bend = Math.max(12, (endX - x) / 2);
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(x, y);
    context.bezierCurveTo(x + bend, y, endX - bend, endY, endX, endY);
    context.moveTo(endX - 7, endY - 4);
    context.lineTo(endX, endY);
    context.lineTo(endX - 7, endY + 4);
    context.stroke();
  }

  xOf(share) {
    return ((share - this.view.left) / (this.view.right - this.view.left)) * this.width;
  }

  yOf(address) {
    const {low, high} = this.range();
    return ((high - address) / (high - low)) * this.height;
  }

  boxOf(i) {
    const {position, begin, end, address, nbytes} = this.model;
    return [
      this.xOf(position[begin[i]]),
      this.xOf(position[end[i]]),
      this.yOf(address[i] + nbytes[i]),
      this.yOf(address[i]),
    ];
  }

  // What lies below a point of the page.
  at(event) {
    const box = this.pool.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const {left, right, low, high} = this.range();
    const share = left + (x / this.width) * (right - left);
    const address = high - (y / this.height) * (high - low);
    const moment = this.model.momentAt(share);
    const inside = x >= 0 && x < this.width && y >= 0 && y < this.height;
    const residence = inside ? this.model.residenceAt(moment, address) : -1;
    return {moment, residence, x: x / this.width, y: 1 - y / this.height};
  }
}

// Black or white, whichever is read better on a colour.
function inkOn(color) {
  const value = parseInt(color.slice(1), 16);
  const [red, green, blue] = [value >> 16, (value >> 8) & 255, value & 255];
  return red * 0.299 + green * 0.587 + blue * 0.114 > 140 ? '#101218' : '#ffffff';
}
