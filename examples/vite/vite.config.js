/** Vite's dev server bundles dependencies ahead of time, which would part fireside from its Worker and its wasm: leave it as it is. */
export default {
  optimizeDeps: { exclude: ["fireside"] },
};
