/* Runs the search of the built site without a browser: node search.js SITE < queries.json
 * Prints the names of the pages that each query finds, the best first. */
const fs = require("fs");
const vm = require("vm");

const site = process.argv[2];
const world = vm.createContext({
  console,
  SPHINX_HIGHLIGHT_ENABLED: false,
  DOCUMENTATION_OPTIONS: {},
  document: { addEventListener() {}, getElementById: () => null, readyState: "loading" },
  _ready() {},
  _: (words) => words,
});
world.window = world;
for (const path of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"]) {
  vm.runInContext(fs.readFileSync(`${site}/${path}`, "utf-8"), world, path);
}
world.queries = JSON.parse(fs.readFileSync(0, "utf-8"));
const found = vm.runInContext(
  `Object.fromEntries(queries.map((query) => [
    query,
    // The site takes its results from the end.
    [...new Set(Search._performSearch(...Search._parseQuery(query)).map((one) => one[0]).reverse())],
  ]))`,
  world,
);
console.log(JSON.stringify(found));
