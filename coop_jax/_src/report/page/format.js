// Numbers and places for people.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

// Bytes with three significant digits: 1536 is "1.50 KiB".
function formatBytes(bytes) {
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

// The same for an axis: 65536 is "64 KiB".
function formatTick(bytes) {
  return formatBytes(bytes).replace(/\.0+ /, ' ');
}

function formatCount(count) {
  return count.toLocaleString('en');
}

function formatSeconds(seconds) {
  for (const [unit, share] of [['s', 1], ['ms', 1e-3], ['µs', 1e-6]]) {
    if (seconds >= share) {
      return `${Number((seconds / share).toPrecision(3))} ${unit}`;
    }
  }
  return seconds > 0 ? `${Number((seconds * 1e9).toPrecision(3))} ns` : '0 s';
}

// "1st", "2nd", "3rd", "11th".
function formatOrdinal(number) {
  const tens = number % 100;
  const ending = tens > 10 && tens < 14 ? 'th' : ['th', 'st', 'nd', 'rd'][number % 10] || 'th';
  return `${number}${ending}`;
}

// "/home/me/model.py:12 (Layer.__call__)" as its parts; empty ones where they are not known.
function splitSource(source) {
  const found = /^(.*?)([^/\\]*):(\d+)(?: \((.*)\))?$/.exec(source);
  if (found === null) {
    return {folder: '', file: source, line: '', name: ''};
  }
  return {folder: found[1], file: found[2], line: found[3], name: found[4] || ''};
}

// Round values for an axis from `low` to `high`, about `count` of them; powers of two for bytes.
function ticksOf(low, high, count, base) {
  const rough = (high - low) / Math.max(1, count);
  let step;
  if (base === 2) {
    step = 2 ** Math.ceil(Math.log2(rough));
  } else {
    const power = 10 ** Math.floor(Math.log10(rough));
    step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  }
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) {
    ticks.push(tick);
  }
  return ticks;
}
