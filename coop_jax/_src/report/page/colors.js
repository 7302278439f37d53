// Colours of kinds, after Okabe and Ito, whose hues people with any colour vision tell apart;
// recomputed storages and reserved memory are hatched as well, and evictions have a mark.

const KINDS = {
  state: {name: 'state (donated)', light: '#1b9e77', dark: '#2fb38a'},
  input: {name: 'inputs', light: '#7fc8ee', dark: '#6db9e0'},
  constant: {name: 'constants', light: '#a08c5b', dark: '#b39f6c'},
  forward: {name: 'forward pass', light: '#3f78bd', dark: '#4f8fd9'},
  backward: {name: 'backward pass', light: '#eca72c', dark: '#e8a735'},
  update: {name: 'optimizer update', light: '#e0d03c', dark: '#e6da5c'},
  result: {name: 'results', light: '#c96fa1', dark: '#d481b1'},
  scratch: {name: 'scratch', light: '#8d8f99', dark: '#8d92a0'},
  reserved: {name: 'reserved, outside the pool', light: '#dcdee4', dark: '#2b2f3a'},
  other: {name: 'other', light: '#a9abb5', dark: '#6a6f7d'},
};

const EVICTION = {light: '#c8102e', dark: '#ff5d5d'};
const LINE_HUES = 24;

// A CSS colour "#rrggbb" as a pixel of ImageData in a Uint32Array (little-endian).
function pixelOf(color) {
  const value = parseInt(color.slice(1), 16);
  const [red, green, blue] = [value >> 16, (value >> 8) & 255, value & 255];
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

// A mix of two pixels; `share` of the second.
function mixed(first, second, share) {
  let pixel = 255 << 24;
  for (const shift of [0, 8, 16]) {
    const [a, b] = [(first >> shift) & 255, (second >> shift) & 255];
    pixel |= Math.round(a + (b - a) * share) << shift;
  }
  return pixel >>> 0;
}

function hexOfHue(hue, lightness) {
  const amplitude = 0.55 * Math.min(lightness, 1 - lightness);
  const channel = (n) => {
    const k = (n + hue / 30) % 12;
    const value = lightness - amplitude * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(255 * value).toString(16).padStart(2, '0');
  };
  return `#${channel(0)}${channel(8)}${channel(4)}`;
}

// What the raster needs: for each class of residences its fill, edge, hatch and dimmed pixel.
class Palette {
  constructor(model, theme, by) {
    const surface = pixelOf(theme === 'dark' ? '#14161c' : '#ffffff');
    const ink = pixelOf(theme === 'dark' ? '#ffffff' : '#000000');
    this.by = by;
    this.surface = surface;
    this.eviction = pixelOf(EVICTION[theme]);
    this.colors = model.kinds.map((kind) => KINDS[kind][theme]);
    if (by === 'line') {
      const lightness = theme === 'dark' ? 0.62 : 0.52;
      for (let hue = 0; hue < LINE_HUES; hue += 1) {
        this.colors.push(hexOfHue((hue * 137.5) % 360, lightness - 0.07 * (hue % 3)));
      }
    }
    const pixels = this.colors.map(pixelOf);
    this.fill = Uint32Array.from(pixels);
    this.edge = Uint32Array.from(pixels, (p) => mixed(p, surface, 0.55));
    this.hatch = Uint32Array.from(pixels, (p) => mixed(p, theme === 'dark' ? ink : surface, 0.38));
    this.dim = Uint32Array.from(pixels, (p) => mixed(p, surface, 0.86));
    this.classes = this.classesOf(model);
  }

  // The number of the colour of each residence.
  classesOf(model) {
    if (this.by !== 'line') {
      return model.kind;
    }
    const reserved = model.kinds.indexOf('reserved');
    const classes = new Uint8Array(model.count);
    for (let i = 0; i < model.count; i += 1) {
      const source = model.columns.labelSource[model.label[i]];
      const known = model.texts[source] !== '';
      classes[i] = known ? model.kinds.length + (source % LINE_HUES) : model.kind[i];
      if (model.kind[i] === reserved) {
        classes[i] = reserved;
      }
    }
    return classes;
  }

  colorOf(i) {
    return this.colors[this.classes[i]];
  }
}
