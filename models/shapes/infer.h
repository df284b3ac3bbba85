#ifndef REFRACT_MODELS_SHAPES_INFER_H_
#define REFRACT_MODELS_SHAPES_INFER_H_

// Shape inference for graphs that come without shapes (TorchScript), and the
// checks that running a graph several times makes possible.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"

namespace refract::models {

// An example of one input: its dtype and rank, and real contents where given.
struct NamedTensor {
  std::string name;
  base::TensorView tensor;
};

// Gives every tensor value of `graph` a dtype and a symbolic shape, from one
// example request (`sample`, all inputs, with contents that the model accepts).
// Probes the graph with other sizes: which sizes of the inputs may change, and
// which change together, is found by trying; every other size is fitted as an
// expression of these. Dimensions that fit none stay unknown. The batch is "B",
// other leading sizes "N0", …, others "T0", …. Casts that turn out to change
// nothing are removed, which renumbers values and nodes.
//
// Where no output has the batch's rows (the best k of all rows), the size that
// leads most inputs is the batch.
//
// Sizes that are equal in the example but unrelated in the model may be taken
// for one size where the model cannot tell them apart: an example is best given
// with different sizes, and with two rows or more.
//
// InvalidArgument: the sample does not fit the model (names the input), or the
// trace is specialised to its batch: it fails, or its result stops following
// the batch, at sizes other than the traced one. Names the operator that gives
// it away.
absl::Status InferShapes(absl::Span<const NamedTensor> sample,
                         const WeightStore& weights, Graph& graph);

// Compares rows across batches of a graph that has shapes. PyTorch specialises
// sizes of 0 and 1, so that a graph may fail or answer otherwise for a single
// row: row 0 of the sample alone is compared with the same row given twice.
// Sets graph.min_batch to 2 when they differ, to 1 when they agree (also where
// an exporter's guard said 2; a larger minimum is left alone), and graph.rows
// when a row answers otherwise beside other rows. `notes` gets a line with the
// minimum and its reason, or with the reason why rows could not be compared.
//
// InvalidArgument as InferShapes() for a sample that does not fit.
absl::Status CheckRows(absl::Span<const NamedTensor> sample,
                       const WeightStore& weights, Graph& graph,
                       std::vector<std::string>& notes);

// torch.export limits every dynamic size to 2 and more, because PyTorch treats
// 0 and 1 as constants. Requests whose bags of a table hold one id in all, or
// none, are common: the limits of sizes other than the batch are lowered where
// the graph, run at 1 and at 0, has the shapes that the export predicts. The
// requests for these runs are made of `sample`, or of zeros and of ones where
// `sample` is empty. Each limit that stays adds a line to `notes`.
//
// InvalidArgument: the sample's names or dtypes are not the inputs'.
absl::Status RelaxSmallSizes(absl::Span<const NamedTensor> sample,
                             const WeightStore& weights, Graph& graph,
                             std::vector<std::string>& notes);

// Writes sizes as multiples of the batch where they must be: torch.export gives
// the lengths of a KeyedJaggedTensor a symbol s of their own, although the
// pooled rows, of which there are s // 3, are put side by side with the
// batch's. A vector of integers whose size follows from the batch in this way
// gets that size ("3*B"), as does every size computed from it; its symbol is
// removed.
//
// Vectors that are split into pieces of the same sizes have one size: the ids
// and the weights of a KeyedJaggedTensor.
//
// gather() and scatter() pair the rows of two inputs: the export demands at
// least as many rows of one as of the other and PyTorch ignores further rows,
// but in a request both have the rows of the batch. Such a leading size becomes
// the batch, and so does the leading size of an input that nothing reads where
// `sample` (which may be empty) has as many rows; each adds a line to `notes`.
// A sample with other sizes prevents it. The graph is not run.
void TieSizes(absl::Span<const NamedTensor> sample, Graph& graph,
              std::vector<std::string>& notes);

// Fills the shapes that an exported graph does not have (torch_export drops
// wrong ones) by running it at several sizes of its symbols. Shapes stay
// unknown in a graph that does not run with zeros, and where an input's size
// has several symbols.
void FillShapes(const WeightStore& weights, Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_SHAPES_INFER_H_
