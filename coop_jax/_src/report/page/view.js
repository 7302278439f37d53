// What part of the timelines is seen: shares of the time and of the addresses, for all panels.

const MOST_ZOOM = 1e7;

class View {
  constructor(changed) {
    this.changed = changed;
    this.reset();
  }

  reset() {
    Object.assign(this, {left: 0, right: 1, low: 0, high: 1});
    this.changed();
  }

  // Zooms by a factor around a point, given as shares of what is seen.
  zoom(factorX, factorY, x, y) {
    [this.left, this.right] = zoomed(this.left, this.right, factorX, x);
    [this.low, this.high] = zoomed(this.low, this.high, factorY, y);
    this.changed();
  }

  // Moves by shares of what is seen.
  pan(x, y) {
    [this.left, this.right] = moved(this.left, this.right, x);
    [this.low, this.high] = moved(this.low, this.high, y);
    this.changed();
  }

  // Moves so that a share of the time is seen.
  show(share) {
    if (share < this.left || share > this.right) {
      this.pan((share - (this.left + this.right) / 2) / (this.right - this.left), 0);
    }
  }
}

function zoomed(low, high, factor, at) {
  const width = Math.min(1, Math.max(1 / MOST_ZOOM, (high - low) / factor));
  const middle = low + (high - low) * at;
  const begin = Math.min(1 - width, Math.max(0, middle - width * at));
  return [begin, begin + width];
}

function moved(low, high, share) {
  const width = high - low;
  const begin = Math.min(1 - width, Math.max(0, low + share * width));
  return [begin, begin + width];
}
