/* The order of the results of a search: of equal pages the first for newcomers come first, then
 * guides. Guides come before the pages of single names. Pages on how xloader is built, and records
 * of what was measured and changed, come last. */
var FIRST_PAGES = ["start/install", "start/first_training"];
var LAST_PAGES = ["benchmarks", "changelog", "contributing", "design", "shuffle"];

var Scorer = {
  score: ([page, , , , score]) => {
    if (FIRST_PAGES.includes(page)) return score + 1;
    if (LAST_PAGES.includes(page)) return score - 100;
    if (page.startsWith("reference/names/")) return score - 10;
    return page.startsWith("guides/") ? score + 0.5 : score;
  },

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
