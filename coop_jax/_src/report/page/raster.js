// Draws residences into pixels.
//
// Each pixel shows the residence at its centre, if any: residences never overlap, so each pixel is
// written at most once or twice, and what covers no centre costs a comparison. A million of them
// take some 20 ms on one core, and nothing has to be aggregated beforehand. WebGL2 with an instance
// for each takes 20 s a frame where there is no GPU (python -m tests.benchmarks.timeline_page
// measures both in headless Chromium), so it would need the same selection first; this way pictures
// are equal on all machines.

const HATCH_PERIOD = 7;
const HATCH_WIDTH = 2;
// Smaller rectangles have no edges, hatches and marks; in CSS pixels.
const LEAST_EDGED = 4;
const LEAST_HATCHED = 5;
const LEAST_MARKED = 5;
// Larger ones have room for a name.
const LEAST_NAMED = {width: 64, height: 15};
const MOST_NAMED = 400;

class Raster {
  constructor(model, palette, ratio) {
    this.model = model;
    this.palette = palette;
    this.ratio = ratio;
    this.columnOf = new Int32Array(model.moments + 1);
  }

  // `range`: shares `left` to `right` of the time, bytes `low` to `high` of addresses. `singled`:
  // residences with a 1 keep their colour, others fade; null for all.
  paint(image, range, singled) {
    const {model} = this;
    const {width, height} = image;
    this.width = width;
    this.pixels = new Uint32Array(image.data.buffer);
    this.pixels.fill(this.palette.surface);
    this.named = []; // residences with room for a name
    const scaleX = width / (range.right - range.left);
    const scaleY = height / (range.high - range.low);
    const [firstMoment, lastMoment] = [model.momentAt(range.left), model.momentAt(range.right) + 1];
    const {begin, end, address, nbytes, blockEnd} = model;
    const columnOf = this.readColumns(range, scaleX, firstMoment, lastMoment);
    for (let block = 0; block < blockEnd.length; block += 1) {
      const start = block * BLOCK;
      if (begin[start] >= lastMoment) {
        break;
      }
      if (blockEnd[block] <= firstMoment) {
        continue;
      }
      const stop = Math.min(model.count, start + BLOCK);
      for (let i = start; i < stop; i += 1) {
        const column = columnOf[begin[i]];
        const columnEnd = columnOf[end[i]];
        if (columnEnd <= column || columnEnd <= 0 || column >= width || address[i] < 0) {
          continue;
        }
        const row = Math.ceil((range.high - address[i] - nbytes[i]) * scaleY - 0.5);
        const rowEnd = Math.ceil((range.high - address[i]) * scaleY - 0.5);
        if (rowEnd > row && rowEnd > 0 && row < height) {
          this.rectangle(i, column, columnEnd, row, rowEnd, height, !singled || singled[i]);
        }
      }
    }
  }

  // The first pixel column whose centre is not before a moment, for the moments that are seen: what
  // is asked for each residence twice. One far outside is as good as any other.
  readColumns(range, scale, firstMoment, lastMoment) {
    const {columnOf, model, width} = this;
    const far = 2 * width;
    columnOf.fill(-far, 0, firstMoment);
    columnOf.fill(far, lastMoment + 1);
    for (let m = firstMoment; m <= lastMoment; m += 1) {
      const column = Math.ceil((model.position[m] - range.left) * scale - 0.5);
      columnOf[m] = Math.max(-far, Math.min(far, column));
    }
    return columnOf;
  }

  rectangle(i, column, columnEnd, row, rowEnd, height, shown) {
    const {palette, ratio, width} = this;
    const paint = palette.classes[i];
    const [left, right] = [Math.max(0, column), Math.min(width, columnEnd)];
    const [top, bottom] = [Math.max(0, row), Math.min(height, rowEnd)];
    const small = Math.min(columnEnd - column, rowEnd - row) / ratio;
    this.fill(left, right, top, bottom, shown ? palette.fill[paint] : palette.dim[paint]);
    if (!shown) {
      return;
    }
    if (small >= LEAST_HATCHED && (this.model.recomputation[i] > 0 || this.isReserved(i))) {
      this.hatch(left, right, top, bottom, palette.hatch[paint]);
    }
    if (
      bottom - top >= LEAST_NAMED.height * ratio &&
      right - left >= LEAST_NAMED.width * ratio &&
      this.named.length < MOST_NAMED
    ) {
      this.named.push(i);
    }
    if (small >= LEAST_EDGED) {
      const edge = Math.max(1, Math.round(ratio));
      this.fill(Math.max(left, columnEnd - edge), right, top, bottom, palette.edge[paint]);
      this.fill(left, right, Math.max(top, rowEnd - edge), bottom, palette.edge[paint]);
    }
    if (this.model.ending[i] === ENDINGS.evicted && (columnEnd - column) / ratio >= LEAST_MARKED) {
      const mark = Math.max(2, Math.round(2 * ratio));
      this.fill(Math.max(left, columnEnd - mark), right, top, bottom, palette.eviction);
    }
  }

  isReserved(i) {
    return this.model.kinds[this.model.kind[i]] === 'reserved';
  }

  fill(left, right, top, bottom, pixel) {
    const {pixels, width} = this;
    if (right - left < 8) {
      for (let y = top; y < bottom; y += 1) {
        for (let at = y * width + left; at < y * width + right; at += 1) {
          pixels[at] = pixel;
        }
      }
      return;
    }
    for (let y = top; y < bottom; y += 1) {
      pixels.fill(pixel, y * width + left, y * width + right);
    }
  }

  hatch(left, right, top, bottom, pixel) {
    const period = Math.round(HATCH_PERIOD * this.ratio);
    const stroke = Math.round(HATCH_WIDTH * this.ratio);
    for (let y = top; y < bottom; y += 1) {
      const begin = y * this.width;
      for (let x = left; x < right; x += 1) {
        if ((x + y) % period < stroke) {
          this.pixels[begin + x] = pixel;
        }
      }
    }
  }
}
