// How the search orders what it finds: as Sphinx does by itself, but the reference and the glossary come before lessons.
var Scorer = {
  score: ([page, , , , score]) => score + (["calls", "reference", "lessons/glossary"].includes(page) ? 10 : 0),
  // what Sphinx has
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
