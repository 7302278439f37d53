// Pointer, wheel and keys.

const WHEEL_ZOOM = 0.0022;
const KEY_PAN = 0.12;
const KEY_ZOOM = 1.4;
const CLICK_SLOP = 4; // what moved less is a click; CSS pixels

class Controls {
  // `page` has view, panels, hover, choose, step and the other things that keys do.
  constructor(page) {
    this.page = page;
    this.pointers = new Map();
    for (const panel of page.panels) {
      this.listen(panel);
    }
    window.addEventListener('keydown', (event) => this.onKey(event));
  }

  listen(panel) {
    const {stage, below} = panel;
    stage.addEventListener('wheel', (event) => this.onWheel(panel, event), {passive: false});
    stage.addEventListener('pointerdown', (event) => this.onDown(panel, event));
    stage.addEventListener('pointermove', (event) => this.onMove(panel, event));
    for (const name of ['pointerup', 'pointercancel']) {
      stage.addEventListener(name, (event) => this.onUp(panel, event));
    }
    stage.addEventListener('pointerleave', () => this.page.hover(null));
    below.addEventListener('click', (event) => this.page.choose(panel, panel.at(event).moment));
  }

  onWheel(panel, event) {
    event.preventDefault();
    const {view} = this.page;
    const {x, y} = panel.at(event);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      view.pan(event.deltaX / panel.width, 0);
      return;
    }
    const factor = Math.exp(-event.deltaY * WHEEL_ZOOM * (event.deltaMode === 1 ? 16 : 1));
    view.zoom(event.shiftKey ? 1 : factor, event.shiftKey || event.altKey ? factor : 1, x, y);
  }

  onDown(panel, event) {
    panel.stage.setPointerCapture(event.pointerId);
    const {clientX: x, clientY: y} = event;
    this.pointers.set(event.pointerId, {x, y, startX: x, startY: y, moved: false});
  }

  onMove(panel, event) {
    const pointer = this.pointers.get(event.pointerId);
    if (pointer === undefined) {
      this.page.hover(panel, event);
      return;
    }
    const [dx, dy] = [event.clientX - pointer.x, event.clientY - pointer.y];
    const [farX, farY] = [event.clientX - pointer.startX, event.clientY - pointer.startY];
    pointer.moved = pointer.moved || Math.hypot(farX, farY) > CLICK_SLOP;
    if (this.pointers.size === 2) {
      this.pinch(panel, event, pointer);
    } else if (pointer.moved) {
      this.page.hover(null);
      this.page.view.pan(-dx / panel.width, dy / panel.height);
    }
    pointer.x = event.clientX;
    pointer.y = event.clientY;
  }

  pinch(panel, event, pointer) {
    const [other] = [...this.pointers.values()].filter((p) => p !== pointer);
    const before = Math.hypot(pointer.x - other.x, pointer.y - other.y);
    const after = Math.hypot(event.clientX - other.x, event.clientY - other.y);
    const {x, y} = panel.at(event);
    this.page.view.zoom(after / Math.max(1, before), 1, x, y);
  }

  onUp(panel, event) {
    const pointer = this.pointers.get(event.pointerId);
    this.pointers.delete(event.pointerId);
    if (pointer !== undefined && !pointer.moved && event.type === 'pointerup') {
      this.page.choose(panel, panel.at(event).moment);
      this.page.hover(panel, event);
    }
  }

  onKey(event) {
    if (event.target.tagName === 'INPUT' || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const {page} = this;
    const {view} = page;
    const actions = {
      ArrowLeft: () => view.pan(-KEY_PAN, 0),
      ArrowRight: () => view.pan(KEY_PAN, 0),
      ArrowUp: () => view.pan(0, KEY_PAN),
      ArrowDown: () => view.pan(0, -KEY_PAN),
      '+': () => view.zoom(KEY_ZOOM, 1, 0.5, 0.5),
      '=': () => view.zoom(KEY_ZOOM, 1, 0.5, 0.5),
      '-': () => view.zoom(1 / KEY_ZOOM, 1, 0.5, 0.5),
      ']': () => view.zoom(1, KEY_ZOOM, 0.5, 0.5),
      '[': () => view.zoom(1, 1 / KEY_ZOOM, 0.5, 0.5),
      '0': () => view.reset(),
      ',': () => page.step(-1),
      '.': () => page.step(1),
      e: () => page.next('evicted', 1),
      E: () => page.next('evicted', -1),
      r: () => page.next('again', 1),
      R: () => page.next('again', -1),
      p: () => page.goToPeak(),
      Escape: () => page.list.choose(null),
    };
    const arrow = event.key.startsWith('Arrow');
    if (actions[event.key] && !(arrow && event.target.closest('[role=radiogroup]'))) {
      event.preventDefault();
      actions[event.key]();
    }
  }
}
