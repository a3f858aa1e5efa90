/** Up to version 7 Vite's dev server bundles dependencies into files of its own, which would part fireside from its Worker. Later versions do not need this. */
export default {
  optimizeDeps: { exclude: ["fireside"] },
};
