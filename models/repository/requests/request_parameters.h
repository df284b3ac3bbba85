#ifndef REFRACT_MODELS_REPOSITORY_REQUESTS_REQUEST_PARAMETERS_H_
#define REFRACT_MODELS_REPOSITORY_REQUESTS_REQUEST_PARAMETERS_H_

// Parameters of config.pbtxt that a client needs to draw valid requests and that
// the model's metadata does not have. Import writes them; tools/loadgen reads
// them. Nodes do not, because versions may differ; requests are checked against
// the model itself:
//   ids.<input>                the tables whose ids or bag offsets an input
//   offsets.<input>            holds: "table=<weight> rows=<n>", then
//                              " column=<k>" or "<k>-<last>", " row=<k>" or
//                              " piece=<k>" for a part; ";" between them
//   bags.<offsets input>       "ids=<input> include_last=<true|false>"; with
//                              " row=<k>", joined by ";", where each row of the
//                              offsets has a list of ids
//   lengths.<lengths input>    "ids=<input> pieces=<n>": lengths of the bags of
//                              piece after piece of these ids
//   integers.<input>           "<least>;<end>": integers from least on and below
//                              end are valid as indices; "<least>;?": unknown
//   shape.<input>              its sizes as models::SymExpr texts, joined by
//                              ";": "s0 + 1", "s0;13"
//   batch_symbol               which symbol of these counts the items to score
//   size_limits                "<symbol>=<least>-<most>", joined by ";"

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"

namespace refract::models {

std::map<std::string, std::string> RequestParameters(const Graph& graph);

bool IsRequestParameter(absl::string_view key);
// InvalidArgument names an input that the model does not have. The text is not
// checked: it may be that of another version.
absl::Status CheckRequestParameter(absl::string_view key, const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_REQUESTS_REQUEST_PARAMETERS_H_
