#ifndef REFRACT_MODELS_TORCH_EXPORT_RECORDED_SHAPES_H_
#define REFRACT_MODELS_TORCH_EXPORT_RECORDED_SHAPES_H_

#include "models/graph/graph.h"

namespace refract::models::torch_export {

// Corrects shapes that PyTorch (2.11) records wrongly. An LSTM's last states
// have a dimension too many in the record, [layers, 1, B, width] for [layers,
// B, width]: they get the shape that the operator gives, and values computed
// from them lose their shapes (models/shapes finds these by running).
void CorrectRecordedShapes(Graph& graph);

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_RECORDED_SHAPES_H_
