/* The order of the results of a search: pages on how xloader is built, and records of what was
 * measured and changed, hold most words of the field, and come after the pages for users. */
var LAST_PAGES = ["benchmarks", "changelog", "contributing", "design"];

var Scorer = {
  score: ([page, , , , score]) => (LAST_PAGES.includes(page) ? score - 100 : score),

  // The rest is as in Sphinx, which takes all of a scorer or nothing.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
