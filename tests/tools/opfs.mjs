/** A private file system and Web Locks in memory, for Node: exclusive sync handles, a quota, snapshots, and tabs that die. */

class FakeSync {
  #file;
  #system;
  #open = true;

  constructor(file, system) {
    this.#file = file;
    this.#system = system;
    system.handles.add(this);
  }

  #check() {
    if (!this.#open) throw new DOMException("The handle is closed.", "InvalidStateError");
  }

  read(into, { at }) {
    this.#check();
    const bytes = this.#file.bytes.subarray(at, at + into.length);
    into.set(bytes);
    return bytes.length;
  }

  write(from, { at }) {
    this.#check();
    const end = Math.max(this.#file.bytes.length, at + from.length);
    if (this.#system.used() + end - this.#file.bytes.length > this.#system.quota) throw new DOMException("No room is left.", "QuotaExceededError");
    if (end > this.#file.bytes.length) {
      const grown = Buffer.alloc(end);
      this.#file.bytes.copy(grown);
      this.#file.bytes = grown;
    }
    this.#file.bytes.set(from, at);
    return from.length;
  }

  truncate(bytes) {
    this.#check();
    const kept = Buffer.alloc(bytes);
    this.#file.bytes.copy(kept, 0, 0, bytes);
    this.#file.bytes = kept;
  }

  getSize() {
    this.#check();
    return this.#file.bytes.length;
  }

  flush() {
    this.#check();
  }

  close() {
    this.#open = false;
    this.#file.held = false;
    this.#system.handles.delete(this);
  }
}

class FakeFileHandle {
  kind = "file";
  constructor(file, system) {
    Object.assign(this, { file, system });
  }

  async getFile() {
    return new File([this.file.bytes], "snapshot");
  }

  async createSyncAccessHandle() {
    if (this.file.held) throw new DOMException("The file is open elsewhere.", "NoModificationAllowedError");
    this.file.held = true;
    return new FakeSync(this.file, this.system);
  }
}

class FakeFolder {
  kind = "directory";
  children = new Map();
  constructor(system) {
    this.system = system;
  }

  async getDirectoryHandle(name, { create = false } = {}) {
    if (!this.children.has(name)) {
      if (!create) throw new DOMException(name, "NotFoundError");
      this.children.set(name, new FakeFolder(this.system));
    }
    return this.children.get(name);
  }

  async getFileHandle(name, { create = false } = {}) {
    if (!this.children.has(name)) {
      if (!create) throw new DOMException(name, "NotFoundError");
      this.children.set(name, { bytes: Buffer.alloc(0), held: false });
    }
    return new FakeFileHandle(this.children.get(name), this.system);
  }

  async removeEntry(name) {
    if (!this.children.delete(name)) throw new DOMException(name, "NotFoundError");
  }

  async *entries() {
    for (const [name, child] of this.children) yield [name, child instanceof FakeFolder ? child : { kind: "file" }];
  }
}

class FakeLocks {
  #held = [];
  #queue = [];

  request(name, { mode = "exclusive", ifAvailable = false, signal } = {}, callback) {
    return new Promise((resolve, reject) => {
      const ask = { name, mode, run: () => this.#run({ name, mode }, callback).then(resolve, reject) };
      if (this.#free(ask)) ask.run();
      else if (ifAvailable) Promise.resolve(callback(null)).then(resolve, reject);
      else {
        this.#queue.push(ask);
        signal?.addEventListener("abort", () => {
          this.#queue = this.#queue.filter((other) => other !== ask);
          reject(signal.reason);
        });
      }
    });
  }

  async query() {
    return { held: this.#held.map(({ name, mode }) => ({ name, mode })), pending: [] };
  }

  #free({ name, mode }) {
    const same = this.#held.filter((lock) => lock.name === name);
    return same.length === 0 || (mode === "shared" && same.every((lock) => lock.mode === "shared"));
  }

  async #run(lock, callback) {
    this.#held.push(lock);
    try {
      return await callback(lock);
    } finally {
      this.#held = this.#held.filter((other) => other !== lock);
      const next = this.#queue.findIndex((ask) => this.#free(ask));
      if (next >= 0) this.#queue.splice(next, 1)[0].run();
    }
  }
}

/** Puts a fresh file system and lock manager where the package looks for them. */
export function fakeStorage({ quota = Infinity } = {}) {
  const system = { quota, handles: new Set(), root: null, used: () => sizeOf(system.root) };
  system.root = new FakeFolder(system);
  const navigator = {
    onLine: true,
    locks: new FakeLocks(),
    storage: {
      getDirectory: async () => system.root,
      estimate: async () => ({ usage: system.used(), quota: Number.isFinite(system.quota) ? system.quota : 1e15 }),
    },
  };
  Object.defineProperty(globalThis, "navigator", { value: navigator, configurable: true, writable: true });
  globalThis.FileSystemFileHandle = FakeFileHandle;
  return {
    system,
    /** Bytes of a file by its path; writes them when given. */
    file(path, bytes) {
      let at = system.root;
      for (const name of path.split("/")) at = at?.children?.get(name);
      if (at && bytes) at.bytes = bytes;
      return at?.bytes ?? null;
    },
    /** The only model folder's name. */
    key: () => [...system.root.children.get("fireside").children.get("models").children.keys()],
    /** What a killed tab leaves: its handles and locks are gone, what it wrote is there. */
    kill() {
      for (const handle of system.handles) handle.close();
      navigator.locks = new FakeLocks();
    },
  };
}

function sizeOf(entry) {
  if (!(entry instanceof FakeFolder)) return entry.bytes.length;
  return [...entry.children.values()].reduce((sum, child) => sum + sizeOf(child), 0);
}
