// A timeline that can be asked: what lies at a point, what is live at a moment.
//
// Residences are in order of their first moment. For each block of them the last moment of any is
// kept, so that a view or a question skips the blocks that are over before it begins, and ends
// where residences begin after it.

const BLOCK = 512;

const ENDINGS = {kept: 0, dropped: 1, evicted: 2, overwritten: 3};

class Model {
  constructor({header, columns}) {
    Object.assign(this, {
      title: header.title,
      poolBytes: header.poolBytes,
      budgetBytes: header.budgetBytes,
      moments: header.moments,
      measured: header.measured,
      kinds: header.kinds,
      texts: header.texts,
      columns,
    });
    this.count = columns.kind.length;
    this.kind = columns.kind;
    this.ending = columns.ending;
    this.label = columns.label;
    this.storage = columns.storage;
    this.recomputation = columns.recomputation;
    this.outside = header.kinds.length;
    this.readPlaces(header.addressUnit, header.bytesUnit);
    this.readTimes();
    this.hasSeconds = columns.seconds !== undefined && columns.seconds[this.moments] > 0;
    this.setAxis('operations');
  }

  readPlaces(addressUnit, bytesUnit) {
    const {address, nbytes} = this.columns;
    const outside = address instanceof Uint32Array ? OUTSIDE : -1;
    this.address = new Float64Array(this.count);
    this.nbytes = new Float64Array(this.count);
    let storages = 0;
    for (let i = 0; i < this.count; i += 1) {
      this.address[i] = address[i] === outside ? -1 : address[i] * addressUnit;
      this.nbytes[i] = nbytes[i] * bytesUnit;
      storages = Math.max(storages, this.storage[i] + 1);
    }
    // How often each storage is computed again in all.
    this.again = new Uint16Array(storages);
    for (let i = 0; i < this.count; i += 1) {
      const storage = this.storage[i];
      if (storage >= 0 && this.recomputation[i] > this.again[storage]) {
        this.again[storage] = this.recomputation[i];
      }
    }
  }

  readTimes() {
    const {beginStep, lifetime} = this.columns;
    const reserved = this.kinds.indexOf('reserved');
    this.begin = new Int32Array(this.count);
    this.end = new Int32Array(this.count);
    this.blockEnd = new Int32Array(Math.ceil(this.count / BLOCK));
    this.live = new Float64Array(this.moments + 1);
    this.reserved = new Float64Array(this.moments + 1);
    this.evictionsAt = new Uint16Array(this.moments + 1);
    this.evictions = 0;
    let moment = 0;
    for (let i = 0; i < this.count; i += 1) {
      moment += beginStep[i];
      const end = moment + lifetime[i];
      this.begin[i] = moment;
      this.end[i] = end;
      if (end > this.blockEnd[(i / BLOCK) | 0]) {
        this.blockEnd[(i / BLOCK) | 0] = end;
      }
      if (this.address[i] >= 0) {
        const bytes = this.kind[i] === reserved ? this.reserved : this.live;
        bytes[moment] += this.nbytes[i];
        bytes[end] -= this.nbytes[i];
      }
      if (this.ending[i] === ENDINGS.evicted) {
        this.evictions += 1;
        this.evictionsAt[end] += 1;
      }
    }
    this.peakMoment = 0;
    this.peakBytes = this.live[0] + this.reserved[0];
    for (let m = 1; m < this.moments; m += 1) {
      this.live[m] += this.live[m - 1];
      this.reserved[m] += this.reserved[m - 1];
      this.peakBytes = Math.max(this.peakBytes, this.live[m] + this.reserved[m]);
      if (this.live[m] > this.live[this.peakMoment]) {
        this.peakMoment = m;
      }
    }
    this.recomputations = this.columns.launchAgain.reduce((sum, again) => sum + again, 0);
  }

  // Where each moment begins, as a share of the time; one more for the end.
  setAxis(axis) {
    const {seconds} = this.columns;
    const bySeconds = axis === 'seconds' && this.hasSeconds;
    const whole = bySeconds ? seconds[this.moments] : Math.max(1, this.moments);
    this.axis = bySeconds ? 'seconds' : 'operations';
    this.whole = whole;
    this.position = new Float64Array(this.moments + 1);
    for (let m = 0; m <= this.moments; m += 1) {
      this.position[m] = (bySeconds ? seconds[m] : m) / whole;
    }
  }

  // The moment at a share of the time.
  momentAt(share) {
    let low = 0;
    let high = this.moments - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.position[middle] <= share) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  // Calls `visit` with each residence that is there at some moment in [first, last).
  forEachWithin(first, last, visit) {
    for (let block = 0; block < this.blockEnd.length; block += 1) {
      if (this.blockEnd[block] <= first) {
        continue;
      }
      const stop = Math.min(this.count, (block + 1) * BLOCK);
      for (let i = block * BLOCK; i < stop; i += 1) {
        if (this.begin[i] >= last) {
          return;
        }
        if (this.end[i] > first) {
          visit(i);
        }
      }
    }
  }

  residenceAt(moment, address) {
    let found = -1;
    this.forEachWithin(moment, moment + 1, (i) => {
      if (this.address[i] <= address && address < this.address[i] + this.nbytes[i]) {
        found = this.address[i] < 0 ? found : i;
      }
    });
    return found;
  }

  liveAt(moment) {
    const found = [];
    this.forEachWithin(moment, moment + 1, (i) => found.push(i));
    return found;
  }

  // All residences of a storage, in order.
  residencesOf(storage) {
    const found = [];
    for (let i = 0; storage >= 0 && i < this.count; i += 1) {
      if (this.storage[i] === storage) {
        found.push(i);
      }
    }
    return found;
  }

  // Words of a label: "Operation", "Source", "Shape", "Dtype" or "Path".
  word(label, which) {
    return label < 0 ? '' : this.texts[this.columns[`label${which}`][label]];
  }

  // Seconds from the begin of one moment to that of another; undefined where they are not known.
  secondsBetween(first, last) {
    const {seconds} = this.columns;
    return this.hasSeconds ? seconds[last] - seconds[first] : undefined;
  }
}
