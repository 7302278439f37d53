// What is said of the storage below the pointer.

class Tooltip {
  constructor() {
    this.root = document.getElementById('tooltip');
  }

  hide() {
    this.root.hidden = true;
  }

  show(panel, i, x, y) {
    const {model} = panel;
    const label = model.label[i];
    const head = element('p', 'title');
    const swatch = element('i', 'swatch');
    swatch.style.background = panel.palette.colorOf(i);
    head.append(swatch, element('strong', '', model.word(label, 'Operation')));
    const list = element('dl');
    for (const [name, text] of this.rows(model, i)) {
      if (text) {
        list.append(element('dt', '', name), element('dd', '', text));
      }
    }
    this.root.replaceChildren(head, list);
    this.root.hidden = false;
    const box = this.root.getBoundingClientRect();
    const left = x + 16 + box.width > window.innerWidth ? x - 16 - box.width : x + 16;
    const top = Math.min(y + 16, window.innerHeight - box.height - 8);
    this.root.style.left = `${Math.max(8, left)}px`;
    this.root.style.top = `${Math.max(8, top)}px`;
  }

  rows(model, i) {
    const label = model.label[i];
    const where = splitSource(model.word(label, 'Source'));
    const asked = model.nbytes[i] - model.columns.padding[i];
    const dtype = model.word(label, 'Dtype');
    const storage = model.storage[i];
    return [
      ['value', `${dtype}${model.word(label, 'Shape')}`],
      ['bytes', `${formatBytes(asked)} (${formatCount(asked)})`],
      ['address', formatCount(model.address[i])],
      ['line', where.line ? `${where.file}:${where.line}` : ''],
      ['in', where.name.replace('<locals>.', '')],
      ['module', model.word(label, 'Path')],
      ['kind', KINDS[model.kinds[model.kind[i]]].name],
      ['lives', this.lifetime(model, i)],
      ['computed', this.computed(model, i, storage < 0 ? 0 : model.again[storage])],
    ];
  }

  lifetime(model, i) {
    const [begin, end] = [model.begin[i], model.end[i]];
    const seconds = model.secondsBetween(begin, end);
    const time = seconds === undefined ? '' : `, ${formatSeconds(seconds)}`;
    const ends = ['to the end', 'then read by nothing', 'then evicted', 'then overwritten in place'];
    const ending = ends[model.ending[i]];
    return `operations ${formatCount(begin)} to ${formatCount(end - 1)}${time}, ${ending}`;
  }

  computed(model, i, again) {
    const time = model.recomputation[i];
    if (again === 0) {
      return '';
    }
    const times = again === 1 ? 'once' : `${again} times`;
    return time ? `${formatOrdinal(time)} recomputation of ${again}` : `recomputed ${times} later`;
  }
}
