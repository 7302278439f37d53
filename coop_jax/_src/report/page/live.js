// What is live at the chosen moment, by source line, the line with the most bytes first.

const MOST_LINES = 200;

class LiveList {
  // `single` is called with a function of a label's number that says what to single out, or null.
  constructor(single) {
    this.single = single;
    this.moment = document.getElementById('moment');
    this.lines = document.getElementById('lines');
    this.filter = document.getElementById('filter');
    this.clear = document.getElementById('clear');
    this.filter.addEventListener('input', () => this.showLines());
    this.clear.addEventListener('click', () => this.choose(null));
    this.chosen = null;
  }

  show(panel) {
    this.panel = panel;
    const {model, moment} = panel;
    // What is reserved stands for values that are listed themselves.
    const reserved = model.kinds.indexOf('reserved');
    const live = model.liveAt(moment).filter((i) => model.kind[i] !== reserved);
    const label = model.columns.launchLabel[moment];
    const bytes = live.reduce((sum, i) => sum + model.nbytes[i], 0);
    const again = model.columns.launchAgain[moment] ? ' (again)' : '';
    const time = model.secondsBetween(0, moment);
    const head = element('p', 'head');
    head.append(
      element('strong', '', formatBytes(bytes)),
      ` live at operation ${formatCount(moment)}`,
      time === undefined ? '' : `, ${formatSeconds(time)}`,
    );
    const runs = model.word(label, 'Operation');
    const where = splitSource(model.word(label, 'Source'));
    const at = where.line ? ` at ${where.file}:${where.line}` : '';
    this.moment.replaceChildren(head, element('p', 'runs', runs ? `runs ${runs}${again}${at}` : ''));
    this.groups = this.grouped(live);
    this.whole = bytes;
    this.showLines();
  }

  grouped(live) {
    const {model} = this.panel;
    const bySource = new Map();
    for (const i of live) {
      const source = model.columns.labelSource[model.label[i]];
      const name = model.texts[source] || model.word(model.label[i], 'Operation');
      const group = bySource.get(name) || {source, name, bytes: 0, members: []};
      group.bytes += model.nbytes[i];
      group.members.push(i);
      bySource.set(name, group);
    }
    const groups = [...bySource.values()];
    groups.forEach((g) => g.members.sort((a, b) => model.nbytes[b] - model.nbytes[a]));
    return groups.sort((a, b) => b.bytes - a.bytes);
  }

  showLines() {
    const wanted = this.filter.value.trim().toLowerCase();
    const found = this.groups.filter((group) => !wanted || this.wordsOf(group).includes(wanted));
    const rows = found.slice(0, MOST_LINES).map((group) => this.rowOf(group));
    if (found.length > MOST_LINES) {
      rows.push(element('li', 'more', `and ${found.length - MOST_LINES} more lines`));
    } else if (found.length === 0) {
      rows.push(element('li', 'more', 'nothing that is live here matches'));
    }
    this.lines.replaceChildren(...rows);
  }

  wordsOf(group) {
    const {model} = this.panel;
    const labels = new Set(group.members.map((i) => model.label[i]));
    const words = [group.name];
    for (const label of labels) {
      for (const which of ['Operation', 'Dtype', 'Path', 'Shape']) {
        words.push(model.word(label, which));
      }
    }
    return words.join('\n').toLowerCase();
  }

  rowOf(group) {
    const {model} = this.panel;
    const [largest] = group.members;
    const where = splitSource(group.name);
    const row = element('li');
    const button = element('button', 'line');
    button.type = 'button';
    button.setAttribute('aria-pressed', String(this.chosen === group.name));
    button.title = group.name;
    const name = element('span', 'name', where.line ? `${where.file}:${where.line}` : where.file);
    const size = element('span', 'size', formatBytes(group.bytes));
    const bar = element('span', 'share');
    const part = element('i');
    part.style.width = `${(100 * group.bytes) / Math.max(1, this.whole)}%`;
    part.style.background = this.panel.palette.colorOf(largest);
    bar.append(part);
    const label = model.label[largest];
    const what = [
      where.name.replace('<locals>.', ''),
      group.members.length > 1 ? `${group.members.length} storages` : '',
      `${model.word(label, 'Operation')} ${model.word(label, 'Dtype')}${model.word(label, 'Shape')}`,
    ];
    button.append(name, size, bar, element('span', 'what', what.filter(Boolean).join(' · ')));
    button.addEventListener('click', () => {
      this.choose(this.chosen === group.name ? null : group.name);
    });
    row.append(button);
    return row;
  }

  // Singles out the storages of a line; null for all.
  choose(name) {
    this.chosen = name;
    this.clear.hidden = name === null;
    this.single(
      name === null
        ? null
        : (model, i) => {
            const label = model.label[i];
            return (model.word(label, 'Source') || model.word(label, 'Operation')) === name;
          },
    );
    this.showLines();
  }
}
