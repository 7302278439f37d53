// Puts the page together.

const THEMES = {light: 'dark', dark: 'light'};

// The colour that a variable of the style sheet stands for in the theme of now.
function colorOf(variable) {
  const {style} = document.body;
  style.accentColor = `var(${variable})`;
  const color = getComputedStyle(document.body).accentColor;
  style.accentColor = '';
  return color;
}

class Page {
  constructor(models) {
    const mostBytes = Math.max(1, ...models.map((model) => model.poolBytes));
    this.theme = window.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
    this.by = 'kind';
    this.kind = null;
    this.scheduled = false;
    this.panels = [];
    this.view = new View(() => this.schedule());
    this.panels = models.map((model) => new Panel(model, this.view, mostBytes));
    document.getElementById('plots').append(...this.panels.map((panel) => panel.root));
    this.tooltip = new Tooltip();
    this.list = new LiveList((chosen) => this.singleOut(chosen));
    this.current = this.panels[0];
    this.bindTools();
    this.showLegend();
    this.resize();
    this.list.show(this.current);
    this.controls = new Controls(this);
    new ResizeObserver(() => this.resize()).observe(document.getElementById('plots'));
  }

  bindTools() {
    const on = (id, action) => document.getElementById(id).addEventListener('click', action);
    on('peak', () => this.goToPeak());
    on('reset', () => this.view.reset());
    on('theme', () => this.setTheme(THEMES[this.theme]));
    this.bindChoice('axis', (axis) => {
      this.panels.forEach((panel) => panel.model.setAxis(axis));
      this.schedule();
    });
    this.bindChoice('colour', (by) => {
      this.by = by;
      this.resize();
      this.list.showLines();
    });
    const timed = this.panels.some((panel) => panel.model.hasSeconds);
    document.getElementById('axis').hidden = !timed;
  }

  bindChoice(id, chosen) {
    const buttons = [...document.getElementById(id).children];
    const choose = (button) => {
      for (const each of buttons) {
        each.setAttribute('aria-checked', String(each === button));
        each.tabIndex = each === button ? 0 : -1;
      }
      chosen(button.dataset.value);
    };
    buttons.forEach((button, number) => {
      button.tabIndex = number === 0 ? 0 : -1;
      button.addEventListener('click', () => choose(button));
      button.addEventListener('keydown', (event) => {
        if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') {
          const other = buttons[(number + 1) % buttons.length];
          choose(other);
          other.focus();
        }
      });
    });
  }

  setTheme(theme) {
    this.theme = theme;
    document.documentElement.dataset.theme = theme;
    this.showLegend();
    this.resize();
    this.list.showLines();
  }

  showLegend() {
    const there = new Set();
    for (const {model} of this.panels) {
      model.kind.forEach((kind) => there.add(model.kinds[kind]));
    }
    const items = Object.keys(KINDS).filter((kind) => there.has(kind)).map((kind) => {
      const item = element('li');
      const button = element('button');
      const swatch = element('i', kind === 'reserved' ? 'swatch hatched' : 'swatch');
      swatch.style.backgroundColor = KINDS[kind][this.theme];
      button.type = 'button';
      button.dataset.kind = kind;
      button.setAttribute('aria-pressed', 'false');
      button.append(swatch, KINDS[kind].name);
      button.addEventListener('click', () => this.singleOutKind(kind));
      item.append(button);
      return item;
    });
    if (this.panels.some(({model}) => model.evictions || model.recomputations)) {
      for (const [className, text] of [['hatched again', 'recomputed'], ['evicted', 'evicted']]) {
        const item = element('li', 'mark');
        item.append(element('i', `swatch ${className}`), text);
        items.push(item);
      }
    }
    document.getElementById('legend').replaceChildren(...items);
  }

  singleOutKind(kind) {
    const pressed = this.kind === kind;
    this.list.choose(null);
    if (!pressed) {
      this.singleOut((model, i) => model.kinds[model.kind[i]] === kind, kind);
    }
  }

  // Residences for which `chosen` is false fade; null for none. `kind`: the one that is meant.
  singleOut(chosen, kind = null) {
    this.kind = kind;
    for (const button of document.querySelectorAll('#legend button')) {
      button.setAttribute('aria-pressed', String(button.dataset.kind === kind));
    }
    for (const panel of this.panels) {
      panel.singled = null;
      if (chosen !== null) {
        const {model} = panel;
        panel.singled = Uint8Array.from({length: model.count}, (_, i) => (chosen(model, i) ? 1 : 0));
      }
    }
    this.schedule();
  }

  resize() {
    const colors = {};
    for (const name of [
      'muted', 'line', 'track', 'accent', 'second', 'reserved', 'beyond', 'cursor', 'cursorFill',
      'again',
    ]) {
      colors[name] = colorOf(`--${name.toLowerCase()}`);
    }
    colors.eviction = EVICTION[this.theme];
    for (const panel of this.panels) {
      panel.resize(new Palette(panel.model, this.theme, this.by), colors);
    }
    this.draw();
  }

  schedule() {
    if (!this.scheduled && this.panels.length) {
      this.scheduled = true;
      requestAnimationFrame(() => this.draw());
    }
  }

  draw() {
    this.scheduled = false;
    this.panels.forEach((panel) => panel.draw());
  }

  hover(panel, event) {
    const residence = panel === null ? -1 : panel.at(event).residence;
    for (const each of this.panels) {
      const found = each === panel ? residence : -1;
      if (each.hovered !== found) {
        each.hovered = found;
        each.drawMarks();
      }
    }
    if (residence < 0) {
      this.tooltip.hide();
    } else {
      this.tooltip.show(panel, residence, event.clientX, event.clientY);
    }
  }

  // Chooses a moment of a panel; others choose theirs at the same share of the time.
  choose(panel, moment) {
    this.current = panel;
    const share = panel.model.position[moment];
    for (const each of this.panels) {
      each.moment = each === panel ? moment : each.model.momentAt(share);
      each.root.classList.toggle('current', each === panel && this.panels.length > 1);
    }
    this.view.show(share);
    this.list.show(panel);
    this.schedule();
  }

  step(by) {
    const {model, moment} = this.current;
    this.choose(this.current, Math.min(model.moments - 1, Math.max(0, moment + by)));
  }

  // The next moment before which something is evicted, or at which something is computed again.
  next(what, by) {
    const {model} = this.current;
    const marks = what === 'evicted' ? model.evictionsAt : model.columns.launchAgain;
    let {moment} = this.current;
    do {
      moment += by;
    } while (moment >= 0 && moment < model.moments && !marks[moment]);
    if (moment >= 0 && moment < model.moments) {
      this.choose(this.current, moment);
    }
  }

  goToPeak() {
    this.choose(this.current, this.current.model.peakMoment);
  }
}

async function main() {
  const blocks = [...document.querySelectorAll('script.timeline')];
  const models = await Promise.all(
    blocks.map(async (block) => {
      const text = block.textContent;
      block.remove(); // its text takes as much memory as all else
      return new Model(await decode(text));
    }),
  );
  const page = new Page(models);
  performance.mark('painted');
  window.memoryTimeline = page; // for tests, and for the console
  document.documentElement.dataset.ready = 'true';
}

main().catch((error) => {
  document.getElementById('plots').append(element('p', 'failed', `This page could not be drawn: ${error}`));
  throw error;
});
