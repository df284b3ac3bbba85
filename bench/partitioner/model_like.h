#ifndef REFRACT_BENCH_PARTITIONER_MODEL_LIKE_H_
#define REFRACT_BENCH_PARTITIONER_MODEL_LIKE_H_

// Random problems with the shapes of models, for timing the search.

#include "partitioner/cut/problem.h"

namespace refract::bench {

// About as many nodes as asked for; costs are random, in picoseconds and
// bytes.
struct ModelLike {
  partitioner::cut::Problem problem;
  partitioner::cut::Measure latency;
  partitioner::cut::Measure price;
  // For limits: bytes of weights that the HN reads, and bytes that cross.
  partitioner::cut::Measure hn_memory;
  partitioner::cut::Measure bytes;
};

struct Shape {
  const char* name;
  // `num_nodes` is at least 100.
  ModelLike (*make)(int num_nodes, unsigned seed);
};

// Published click models: per feature an id column that is sliced, cast and
// looked up before the HN, products of pairs of vectors, each reduced, then a
// stack of linear layers. Some of the reductions are also read at the end, past
// the layers.
ModelLike MakeClickModel(int num_nodes, unsigned seed);
// Few look-ups, then blocks of linear, activation, norm and a residual sum, one
// after the other.
ModelLike MakeChain(int num_nodes, unsigned seed);
// Towers next to each other over the same vectors, mixed by gates into several
// results.
ModelLike MakeWide(int num_nodes, unsigned seed);
// Look-ups that may run on the HN if their tables fit: most of the graph.
ModelLike MakeManyTables(int num_nodes, unsigned seed);
// A click model in which one product in fifty can run only on the CN.
ModelLike MakeWithCnOnly(int num_nodes, unsigned seed);

inline constexpr Shape kShapes[] = {{"click model", MakeClickModel},
                                    {"chain", MakeChain},
                                    {"wide", MakeWide},
                                    {"many tables", MakeManyTables},
                                    {"CN-only operators", MakeWithCnOnly}};

}  // namespace refract::bench

#endif  // REFRACT_BENCH_PARTITIONER_MODEL_LIKE_H_
