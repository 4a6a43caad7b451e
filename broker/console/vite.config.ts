import { defineConfig } from "vite";

// Names without hashes: the broker holds each file by its name, and tells browsers to ask again.
export default defineConfig({
  base: "./",
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    modulePreload: false,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "console.js",
        assetFileNames: "console[extname]",
        inlineDynamicImports: true,
      },
    },
  },
});
