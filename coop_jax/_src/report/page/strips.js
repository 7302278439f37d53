// Strips below the pool, over the same time: live bytes, fragmentation, evictions and
// recomputations; a pixel column shows the most of its moments, or how many.

const STRIPS = [
  {name: 'live', title: 'Live bytes', height: 56},
  {name: 'fragmentation', title: 'Fragmentation', height: 36},
  {name: 'events', title: 'Evicted / recomputed', height: 44},
];
const STRIP_GAP = 18;
const STRIPS_HEIGHT = STRIPS.reduce((sum, strip) => sum + strip.height + STRIP_GAP, 0);

class Strips {
  constructor(model) {
    this.model = model;
    const {evictionsAt, columns, moments} = model;
    this.evicted = new Float64Array(moments + 2);
    this.again = new Float64Array(moments + 2);
    for (let m = 0; m <= moments; m += 1) {
      this.evicted[m + 1] = this.evicted[m] + evictionsAt[m];
      this.again[m + 1] = this.again[m] + (m < moments ? columns.launchAgain[m] : 0);
    }
  }

  // Draws into a context whose units are CSS pixels, `width` of them.
  draw(context, view, width, colors, mostBytes) {
    this.readColumns(view, width);
    let top = 0;
    for (const strip of STRIPS) {
      context.save();
      context.translate(0, top + STRIP_GAP);
      context.fillStyle = colors.muted;
      context.fillText(strip.title, 0, -5);
      context.fillStyle = colors.track;
      context.fillRect(0, 0, width, strip.height);
      this[strip.name](context, width, strip.height, colors, mostBytes);
      context.restore();
      top += strip.height + STRIP_GAP;
    }
  }

  // The moments of each pixel column: from first[x] to first[x + 1], at least one.
  readColumns(view, width) {
    const {model} = this;
    this.first = new Int32Array(width + 1);
    let moment = model.momentAt(view.left);
    for (let x = 0; x <= width; x += 1) {
      const share = view.left + ((view.right - view.left) * x) / width;
      while (moment < model.moments && model.position[moment + 1] <= share) {
        moment += 1;
      }
      this.first[x] = Math.min(moment, Math.max(0, model.moments - 1));
    }
  }

  live(context, width, height, colors, mostBytes) {
    const {model, first} = this;
    const scale = height / mostBytes;
    const fullest = new Int32Array(width); // the moment of each column
    context.fillStyle = colors.reserved;
    for (let x = 0; x < width; x += 1) {
      let most = first[x];
      for (let m = first[x]; m < first[x + 1]; m += 1) {
        if (model.live[m] + model.reserved[m] > model.live[most] + model.reserved[most]) {
          most = m;
        }
      }
      fullest[x] = most;
      const reserved = model.reserved[most] * scale;
      context.fillRect(x, height - reserved, 1, reserved);
    }
    context.fillStyle = colors.accent;
    for (let x = 0; x < width; x += 1) {
      const live = model.live[fullest[x]] * scale;
      context.fillRect(x, height - model.reserved[fullest[x]] * scale - live, 1, live);
    }
    const budget = model.budgetBytes || model.poolBytes;
    const y = Math.round(height - budget * scale) + 0.5;
    context.strokeStyle = colors.eviction;
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(0, Math.max(0.5, y));
    context.lineTo(width, Math.max(0.5, y));
    context.stroke();
  }

  fragmentation(context, width, height, colors) {
    const {columns} = this.model;
    const {fragmentation, fragmentationMoment} = columns;
    if (fragmentation.length === 0) {
      return;
    }
    context.beginPath();
    context.moveTo(0, height);
    let at = 0;
    for (let x = 0; x < width; x += 1) {
      while (
        at + 1 < fragmentation.length && fragmentationMoment[at + 1] <= this.first[x]
      ) {
        at += 1;
      }
      const y = height - fragmentation[at] * height;
      context.lineTo(x, y);
      context.lineTo(x + 1, y);
    }
    context.lineTo(width, height);
    context.fillStyle = colors.second;
    context.fill();
  }

  events(context, width, height, colors) {
    const {first, evicted, again} = this;
    const step = 3;
    const bars = [];
    let most = 1;
    for (let x = 0; x < width; x += step) {
      const [from, to] = [first[x], Math.max(first[x] + 1, first[Math.min(width, x + step)])];
      const starts = x === 0 || first[x] !== first[x - step];
      const bar = starts ? [evicted[to] - evicted[from], again[to] - again[from]] : [0, 0];
      most = Math.max(most, ...bar);
      bars.push(bar);
    }
    const middle = height / 2;
    const scale = (middle - 1) / Math.sqrt(most);
    bars.forEach(([up, down], number) => {
      const x = number * step;
      context.fillStyle = colors.eviction;
      context.fillRect(x, middle - Math.sqrt(up) * scale, step - 1, Math.sqrt(up) * scale);
      context.fillStyle = colors.again;
      context.fillRect(x, middle, step - 1, Math.sqrt(down) * scale);
    });
    context.fillStyle = colors.line;
    context.fillRect(0, middle, width, 1);
  }
}
