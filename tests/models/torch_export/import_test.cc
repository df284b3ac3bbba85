#include "models/torch_export/import.h"

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/torch_export/tree_names.h"
#include "tests/base/random_seed.h"
#include "tests/models/testing/pt2_archive.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using testing::FindNode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Json;
using testing::Pt2Archive;
using testing::TempDir;

absl::StatusOr<ImportedModel> ImportBytes(absl::string_view bytes) {
  const TempDir dir;
  return ImportTorchExport(dir.Write("m.pt2", bytes));
}

TEST(TorchExportTest, ReadsGraphWeightsAndSymbols) {
  const TempDir dir;
  const Pt2Archive archive;
  const std::string bytes = archive.Bytes();
  const std::string path = dir.Write("m.pt2", bytes);
  const auto model = ImportTorchExport(path);
  ASSERT_TRUE(model.ok()) << model.status();
  const Graph& graph = model->graph;
  ASSERT_EQ(graph.inputs.size(), 3);
  EXPECT_EQ(graph.value(graph.inputs[0]).name, "dense");
  EXPECT_EQ(graph.value(graph.inputs[1]).dtype, base::DType::kInt64);
  EXPECT_EQ(graph.value(graph.inputs[1]).shape[0].ToString(), "s23");
  EXPECT_THAT(graph.output_names, ElementsAre("output_0"));
  EXPECT_EQ(graph.value(graph.outputs[0]).shape[1].constant(), 1);
  EXPECT_EQ(graph.batch_symbol, "s36");
  EXPECT_EQ(graph.min_batch, 1);
  ASSERT_EQ(graph.symbols.size(), 2);
  EXPECT_EQ(graph.symbols[1].symbol, "s36");
  EXPECT_EQ(graph.symbols[1].max, 4096);
  EXPECT_THAT(model->notes, IsEmpty());

  const Node* bag = FindNode(graph, "aten.embedding_bag.padding_idx");
  ASSERT_NE(bag, nullptr);
  ASSERT_EQ(bag->outputs.size(), 4);
  EXPECT_EQ(graph.value(bag->outputs[0]).name, "getitem");
  EXPECT_THAT(
      std::vector<ValueId>(bag->outputs.begin() + 1, bag->outputs.end()),
      ElementsAre(kNoValue, kNoValue, kNoValue));
  EXPECT_EQ(std::get<bool>(*bag->FindArg("sparse")), false);
  EXPECT_EQ(std::get<int64_t>(*bag->FindArg("mode")), 0);
  EXPECT_NE(FindNode(graph, "aten.relu.default"), nullptr)
      << "in-place operators are made functional";

  ASSERT_EQ(model->weights.entries.size(), 4);
  for (const WeightEntry& entry : model->weights.entries) {
    const char expected = entry.name == "e.weight" ? '\1'
                          : entry.name == "k"      ? '\3'
                                                   : '\2';
    EXPECT_EQ(entry.file, path);
    EXPECT_EQ(bytes[entry.offset], expected) << entry.name;
    EXPECT_EQ(bytes[entry.offset + entry.bytes - 1], expected) << entry.name;
    EXPECT_EQ(entry.storage_offset, entry.name == "l.bias" ? 8 : 0);
  }
  ASSERT_EQ(model->weights.files.size(), 1);
  EXPECT_EQ(model->weights.files[0].bytes, bytes.size());
}

TEST(TorchExportTest, ReadsEveryKindOfArgument) {
  Pt2Archive archive;
  // A custom operator keeps whatever it is given; it feeds the output.
  archive.node(4) = Json::parse(R"JSON({
    "target": "torch.ops.mylib.all.default",
    "inputs": [
      {"name": "t", "arg": {"as_tensor": {"name": "relu_"}}},
      {"name": "ot", "arg": {"as_optional_tensor": {"as_none": true}}},
      {"name": "list", "arg": {"as_optional_tensors":
        [{"as_none": true}, {"as_tensor": {"name": "dense"}}]}},
      {"name": "si", "arg": {"as_sym_int": {"as_name": "size"}}},
      {"name": "si2", "arg": {"as_sym_int": {"as_int": 3}}},
      {"name": "sis", "arg": {"as_sym_ints":
        [{"as_name": "size"}, {"as_int": -1}]}},
      {"name": "ints", "arg": {"as_ints": [2, -1]}},
      {"name": "f", "arg": {"as_float": 0.5}},
      {"name": "inf", "arg": {"as_float": "-Infinity"}},
      {"name": "nan", "arg": {"as_float": "NaN"}},
      {"name": "fs", "arg": {"as_floats": [1.5, "Infinity"]}},
      {"name": "sf", "arg": {"as_sym_float": {"as_float": 2.0}}},
      {"name": "bs", "arg": {"as_bools": [true, false]}},
      {"name": "sb", "arg": {"as_sym_bool": {"as_bool": true}}},
      {"name": "s", "arg": {"as_string": "mean"}},
      {"name": "ss", "arg": {"as_strings": ["a", "b"]}},
      {"name": "dtype", "arg": {"as_scalar_type": 13}},
      {"name": "device", "arg": {"as_device": {"type": "cpu"}}},
      {"name": "layout", "arg": {"as_layout": 7}},
      {"name": "format", "arg": {"as_memory_format": 1}}],
    "outputs": [{"as_tensors": [{"name": "sigmoid"}, {"name": "second"}]}],
    "metadata": {}, "name": "all"})JSON");
  auto& nodes = archive.graph()["nodes"];
  nodes.insert(nodes.begin(), Json::parse(R"JSON({
    "target": "torch.ops.aten.sym_size.int",
    "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "ids"}}},
               {"name": "dim", "arg": {"as_int": 0}}],
    "outputs": [{"as_sym_int": {"as_name": "n"}}], "name": "n"})JSON"));
  nodes.insert(nodes.begin() + 1, Json::parse(R"JSON({
    "target": "_operator.mul",
    "inputs": [{"name": "a", "arg": {"as_sym_int": {"as_name": "n"}}},
               {"name": "b", "arg": {"as_int": 2}}],
    "outputs": [{"as_sym_int": {"as_name": "size"}}], "name": "twice"})JSON"));
  archive.graph()["sym_int_values"] = {
      {"size",
       {{"as_expr",
         {{"expr_str", "Mul(Integer(2), Symbol('s23', integer=True))"}}}}}};
  const auto model = ImportBytes(archive.Bytes());
  ASSERT_TRUE(model.ok()) << model.status();
  const Graph& graph = model->graph;
  const ValueId size = graph.FindValue("size");
  ASSERT_NE(size, kNoValue);
  EXPECT_EQ(graph.value(size).kind, ValueKind::kSymInt);
  EXPECT_EQ(graph.value(size).sym_value.ToString(), "2*s23");
  EXPECT_NE(FindNode(graph, "py.mul"), nullptr);
  EXPECT_NE(FindNode(graph, "aten.sym_size.int"), nullptr);

  const Node* all = FindNode(graph, "mylib.all.default");
  ASSERT_NE(all, nullptr);
  EXPECT_TRUE(all->output_is_list);
  EXPECT_EQ(all->outputs.size(), 2);
  auto arg = [&](absl::string_view name) { return *all->FindArg(name); };
  EXPECT_EQ(arg("t"), Argument(ValueRef{graph.FindValue("relu_")}));
  EXPECT_EQ(arg("ot"), Argument(None{}));
  EXPECT_EQ(arg("list"),
            Argument(ValueList{kNoValue, graph.FindValue("dense")}));
  EXPECT_EQ(arg("si"), Argument(ValueRef{size}));
  EXPECT_EQ(arg("si2"), Argument(int64_t{3}));
  EXPECT_EQ(arg("sis"), Argument(IntList{{.value = size}, {.literal = -1}}));
  EXPECT_EQ(arg("ints"), Argument(IntList{{.literal = 2}, {.literal = -1}}));
  EXPECT_EQ(arg("f"), Argument(0.5));
  EXPECT_EQ(arg("inf"), Argument(-HUGE_VAL));
  EXPECT_TRUE(std::isnan(std::get<double>(arg("nan"))));
  EXPECT_EQ(arg("fs"), Argument(FloatList{1.5, HUGE_VAL}));
  EXPECT_EQ(arg("sf"), Argument(2.0));
  EXPECT_EQ(arg("bs"), Argument(BoolList{true, false}));
  EXPECT_EQ(arg("sb"), Argument(true));
  EXPECT_EQ(arg("s"), Argument(std::string("mean")));
  EXPECT_EQ(arg("ss"), Argument(StringList{"a", "b"}));
  EXPECT_EQ(arg("dtype"), Argument(base::DType::kBFloat16));
  for (absl::string_view dropped : {"device", "layout", "format"}) {
    EXPECT_EQ(all->FindArg(dropped), nullptr) << dropped;
  }
}

TEST(TorchExportTest, InlinesNoGradRegions) {
  Pt2Archive archive;
  Json inner = archive.node(4);
  inner["inputs"][0]["arg"]["as_tensor"]["name"] = "x";
  archive.node(4) = {
      {"target", "torch.ops.higher_order.wrap_with_set_grad_enabled"},
      {"inputs",
       {{{"name", ""}, {"arg", {{"as_bool", false}}}},
        {{"name", ""},
         {"arg",
          {{"as_graph",
            {{"name", "submod_1"},
             {"graph",
              {{"inputs", {{{"as_tensor", {{"name", "x"}}}}}},
               {"outputs", {{{"as_tensor", {{"name", "sigmoid"}}}}}},
               {"nodes", {inner}},
               {"tensor_values", Json::object()}}}}}}}},
        {{"name", ""}, {"arg", {{"as_tensor", {{"name", "relu_"}}}}}}}},
      {"outputs", {{{"as_tensor", {{"name", "outer"}}}}}},
      {"name", "region"}};
  archive.node(5)["inputs"][0]["arg"]["as_tensor"]["name"] = "outer";
  const auto model = ImportBytes(archive.Bytes());
  ASSERT_TRUE(model.ok()) << model.status();
  const Node* sigmoid = FindNode(model->graph, "aten.sigmoid.default");
  const Node* mul = FindNode(model->graph, "aten.mul.Tensor");
  ASSERT_NE(sigmoid, nullptr);
  ASSERT_NE(mul, nullptr);
  EXPECT_EQ(std::get<ValueRef>(*mul->FindArg("self")).id, sigmoid->outputs[0]);
}

TEST(TorchExportTest, NamesOutputsByTheKeysOfADict) {
  Pt2Archive archive;
  auto& outputs = archive.signature()["output_specs"];
  outputs.push_back({{"user_output", {{"arg", {{"as_none", true}}}}}});
  outputs.push_back(
      {{"user_output", {{"arg", {{"as_tensor", {{"name", "sigmoid"}}}}}}}});
  const Json leaf = {{"type", nullptr}, {"children_spec", Json::array()}};
  Json spec = {
      1,
      {{"type", "builtins.dict"},
       {"context", R"(["click", "more things"])"},
       {"children_spec",
        {leaf,
         {{"type", "builtins.tuple"}, {"children_spec", {leaf, leaf}}}}}}};
  const auto names = [&](const std::string& out_spec) {
    archive.program["graph_module"]["module_call_graph"] = {
        {{"fqn", ""}, {"signature", {{"out_spec", out_spec}}}}};
    const auto model = ImportBytes(archive.Bytes());
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->graph.output_names : std::vector<std::string>();
  };
  EXPECT_THAT(names(spec.dump()), ElementsAre("click", "more_things_1"));

  // Whole numbers are keys, too; a character of several bytes is one '_'.
  spec[1]["context"] = R"([7, "é/"])";
  EXPECT_THAT(names(spec.dump()), ElementsAre("7", "___1"));

  // Without usable keys: by position among the tensors.
  EXPECT_THAT(names("no tree"), ElementsAre("output_0", "output_1"));
}

// A specification of ((arguments…), {keyword: argument}).
Json CallSpec(Json arguments, Json keys, Json keywords) {
  return {
      1,
      {{"type", "builtins.tuple"},
       {"children_spec",
        {{{"type", "builtins.tuple"}, {"children_spec", std::move(arguments)}},
         {{"type", "builtins.dict"},
          {"context", keys.dump()},
          {"children_spec", std::move(keywords)}}}}}};
}

TEST(TorchExportTest, NamesInputsAsForwardDoes) {
  Pt2Archive archive;
  const Json leaf = {{"type", nullptr}, {"children_spec", Json::array()}};
  auto& calls = archive.program["graph_module"]["module_call_graph"];
  calls = {{{"fqn", ""},
            {"signature",
             {{"in_spec",
               CallSpec({leaf, leaf}, {"Off", "opt"}, {leaf, leaf}).dump()},
              {"forward_arg_names", {"Dense", "IDs", "Off", "opt"}}}}}};
  const auto model = ImportBytes(archive.Bytes());
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<std::string> names;
  for (const ValueId id : model->graph.inputs) {
    names.push_back(model->graph.value(id).name);
  }
  EXPECT_THAT(names, ElementsAre("Dense", "IDs", "Off"));
  EXPECT_TRUE(ValidateGraph(model->graph).ok());
}

TEST(TorchExportTest, NamesOfInputsFollowContainersAndClasses) {
  const Json leaf = {{"type", nullptr}, {"children_spec", Json::array()}};
  const Json dict = {{"type", "builtins.dict"},
                     {"context", R"(["Price Of", "b"])"},
                     {"children_spec",
                      {leaf,
                       {{"type", "builtins.list"},
                        {"context", "null"},
                        {"children_spec", {leaf, leaf}}}}}};
  const Json jagged = {{"type", "torchrec.sparse.jagged_tensor.JaggedTensor"},
                       {"context", "null"},
                       {"children_spec", {leaf, leaf}}};
  const Json spec = CallSpec({leaf, dict, jagged, leaf}, {"X_"}, {leaf});
  const auto named = [](const Json& in_spec,
                        const std::vector<std::string>& arguments,
                        const std::vector<std::string>& exported) {
    const Json module = {{"module_call_graph",
                          {{{"signature",
                             {{"in_spec", in_spec.dump()},
                              {"forward_arg_names", arguments}}}}}}};
    return torch_export::InputNames(*torch_export::Json::Parse(module.dump()),
                                    exported);
  };
  const std::vector<std::string> arguments = {"X", "Features", "Sparse", "x"};
  const std::vector<std::string> exported = {"x",
                                             "features_price_of",
                                             "features_b_0",
                                             "features_b_1",
                                             "sparse__values",
                                             "sparse__lengths",
                                             "x_1",
                                             "x__1"};
  EXPECT_THAT(named(spec, arguments, exported),
              ElementsAre("X", "Features_Price_Of", "Features_b_0",
                          "Features_b_1", "Sparse__values", "Sparse__lengths",
                          // Both were "x" to the exporter, which one is left.
                          "x_1", "X_"));
  // Where the two do not agree, names stay.
  EXPECT_EQ(named(spec, {"X", "Features"}, exported), exported);
  EXPECT_EQ(named(Json(7), arguments, exported), exported);
  std::vector<std::string> fewer = exported;
  fewer.pop_back();
  EXPECT_EQ(named(spec, arguments, fewer), fewer);
  std::vector<std::string> other = exported;
  other[1] = "args_0";
  EXPECT_EQ(named(spec, arguments, other)[1], "args_0");
}

TEST(TorchExportTest, TurnsGuardsIntoBoundsAndNotes) {
  Pt2Archive archive;
  archive.program["guards_code"] = {
      "L['dense'].size()[0] != 1", "L['off'].size()[0] == L['dense'].size()[0]",
      "3 <= L['ids'].size()[0]", "L['ids'].size()[0] < 1000",
      "L['ids'].size()[0] == L['off'].size()[0] or L['off'].size()[0] == "
      "L['dense'].size()[0]",
      // True of all sizes.
      "(6*L['ids'].size()[0]) % (2*L['ids'].size()[0]) == 0",
      "((6*L['ids'].size()[0]) // (2*L['ids'].size()[0])) != 1",
      "L['ids'].size()[0] != 4*L['ids'].size()[0]",
      "(-1)*(3*L['ids'].size()[0]) <= -1", "1 < 2",
      // The largest is 899.
      "10*L['ids'].size()[0] + 3 <= 8999", "L['ids'].size()[0] % 2 == 0",
      "2 < 1"};
  const auto model = ImportBytes(archive.Bytes());
  ASSERT_TRUE(model.ok()) << model.status();
  const Graph& graph = model->graph;
  EXPECT_EQ(graph.min_batch, 2);
  EXPECT_EQ(graph.symbols[0].symbol, "s23");
  EXPECT_EQ(graph.symbols[0].min, 3);
  EXPECT_EQ(graph.symbols[0].max, 899);
  EXPECT_EQ(graph.symbols[1].min, 1) << "smaller batches are padded";
  EXPECT_THAT(
      model->notes,
      ElementsAre(HasSubstr("L['ids'].size()[0] % 2 == 0"), HasSubstr("2 < 1"),
                  HasSubstr("dimension 0 of ids >= 3"),
                  HasSubstr("dimension 0 of dense >= 2")));
}

TEST(TorchExportTest, GuardsNameInputsByAnyKey) {
  Pt2Archive archive;
  archive.program = Json::parse(absl::StrReplaceAll(
      archive.program.dump(), {{"\"dense\"", "\"f____item_id\""}}));
  archive.program["guards_code"] = {"L['f']['用户/item.id'].size()[0] != 1"};
  const auto model = ImportBytes(archive.Bytes());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->notes, ElementsAre(HasSubstr("0 of f____item_id >= 2")));
}

TEST(TorchExportTest, CountsItemsByOffsetsOfBags) {
  // The offsets end with the number of ids, and no input has a row per item.
  Pt2Archive archive;
  Json items = Pt2Archive::Symbol("s36");
  std::string& text = items["as_expr"]["expr_str"].get_ref<std::string&>();
  text = absl::StrCat("Add(Integer(-1), ", text, ")");
  for (const char* name : {"getitem", "dense"}) {
    archive.SetTensor(name, 7, {items, Pt2Archive::Size(4)});
  }
  archive.SetTensor("cat", 7, {items, Pt2Archive::Size(8)});
  for (const char* name : {"linear", "relu_", "sigmoid", "mul"}) {
    archive.SetTensor(name, 7, {items, Pt2Archive::Size(1)});
  }
  archive.program["guards_code"] = {"L['off'].size()[0] >= 3",
                                    "((-1) + L['off'].size()[0]) != 1"};
  const auto model = ImportBytes(archive.Bytes());
  ASSERT_TRUE(model.ok()) << model.status();
  const Graph& graph = model->graph;
  EXPECT_EQ(graph.batch_symbol, "s36");
  EXPECT_EQ(graph.value(graph.inputs[2]).shape[0].ToString(), "s36 + 1");
  EXPECT_EQ(graph.value(graph.outputs[0]).shape[0].ToString(), "s36");
  EXPECT_EQ(graph.min_batch, 2);
  EXPECT_EQ(graph.symbols[1].max, 4095);
  EXPECT_THAT(model->notes, ElementsAre(HasSubstr("of dense >= 2")));
}

// Writes sizes as an export without dynamic_shapes does.
void FixSizes(Json& json) {
  if (json.is_object() && json.contains("as_expr")) {
    json = {{"as_int", 4}};
    return;
  }
  if (!json.is_structured()) return;
  for (Json& each : json) FixSizes(each);
}

TEST(TorchExportTest, NotesThatEverySizeIsFixed) {
  Pt2Archive archive;
  FixSizes(archive.program);
  archive.program["range_constraints"] = Json::object();
  const auto model = ImportBytes(archive.Bytes());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->graph.symbols, IsEmpty());
  EXPECT_THAT(model->notes, ElementsAre(HasSubstr("dynamic_shapes")));
}

TEST(TorchExportTest, NotesInputsAndResultsThatAreNoTensors) {
  Pt2Archive archive;
  archive.signature()["input_specs"].push_back(
      {{"constant_input", {{"name", "k"}, {"value", {{"as_float", 2.0}}}}}});
  archive.signature()["output_specs"].push_back(
      {{"user_output", {{"arg", {{"as_int", 3}}}}}});
  const auto model = ImportBytes(archive.Bytes());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->notes,
              ElementsAre(HasSubstr("input k is not a tensor; the export fixed "
                                    "it at 2.0"),
                          HasSubstr("result 1 is not a tensor (as_int)")));
}

struct BadCase {
  std::string name;
  std::function<void(Pt2Archive&)> change;
  std::vector<std::string> message;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

class BadExportTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadExportTest, IsRefusedByName) {
  Pt2Archive archive;
  GetParam().change(archive);
  const auto status = ImportBytes(archive.Bytes()).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("m.pt2"));
  for (const std::string& part : GetParam().message) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    All, BadExportTest,
    ::testing::Values(
        BadCase{"NewerSchema",
                [](Pt2Archive& a) { a.program["schema_version"]["major"] = 9; },
                {"m/models/model.json", "schema version 9"},
                kUnimplemented},
        BadCase{"NoSchema",
                [](Pt2Archive& a) { a.program.erase("schema_version"); },
                {"schema_version"}},
        BadCase{"NoJson",
                [](Pt2Archive& a) { a.program = "text"; },
                {"schema_version"}},
        BadCase{"NoGraph",
                [](Pt2Archive& a) { a.program["graph_module"] = 3; },
                {"graph_module"}},
        BadCase{"UnknownInput",
                [](Pt2Archive& a) {
                  a.node(2)["inputs"][0]["arg"]["as_tensor"]["name"] = "zz";
                },
                {"node linear (torch.ops.aten.linear.default)",
                 "argument input", "reads zz"}},
        BadCase{"WrongArgument",
                [](Pt2Archive& a) {
                  a.node(2)["inputs"][0]["arg"] = {{"as_tensor", 7}};
                },
                {"node linear", "argument input", "as_tensor is malformed"}},
        BadCase{
            "TwoTags",
            [](Pt2Archive& a) { a.node(2)["inputs"][0]["arg"]["as_int"] = 7; },
            {"node linear", "argument is malformed"}},
        BadCase{"HugeInt",
                [](Pt2Archive& a) {
                  a.node(1)["inputs"][1]["arg"]["as_int"] = UINT64_MAX;
                },
                {"node cat", "as_int is malformed"}},
        BadCase{"Complex",
                [](Pt2Archive& a) {
                  a.node(1)["inputs"][1]["arg"] = {
                      {"as_complex", {{"real", 1}, {"imag", "i"}}}};
                },
                {"node cat", "as_complex is malformed"}},
        BadCase{"HigherOrder",
                [](Pt2Archive& a) {
                  a.node(4)["target"] = "torch.ops.higher_order.flex_attention";
                },
                {"torch.ops.higher_order.flex_attention", "not supported"},
                kUnimplemented},
        BadCase{"ComplexTensor",
                [](Pt2Archive& a) {
                  a.graph()["tensor_values"]["mul"]["dtype"] = 10;
                },
                {"output", "is complex"},
                kUnimplemented},
        BadCase{"HalfComplexTensor",
                [](Pt2Archive& a) {
                  a.graph()["tensor_values"]["sigmoid"]["dtype"] = 9;
                },
                {"tensor sigmoid", "complex32"},
                kUnimplemented},
        BadCase{"DefinedTwice",
                [](Pt2Archive& a) {
                  a.node(5)["outputs"][0]["as_tensor"]["name"] = "sigmoid";
                },
                {"sigmoid is defined twice"}},
        BadCase{"OutputMissing",
                [](Pt2Archive& a) { a.graph()["nodes"].erase(5); },
                {"output mul is not computed"}},
        BadCase{"NoOutput",
                [](Pt2Archive& a) {
                  a.signature()["output_specs"] = Json::array();
                },
                {"returns no tensor"}},
        BadCase{
            "BufferMutation",
            [](Pt2Archive& a) {
              a.signature()["output_specs"].push_back(
                  {{"buffer_mutation",
                    {{"arg", {{"name", "mul"}}}, {"buffer_name", "counter"}}}});
            },
            {"writes to counter", "buffer_mutation"},
            kUnimplemented},
        BadCase{"CustomObject",
                [](Pt2Archive& a) {
                  a.signature()["input_specs"].push_back(
                      {{"custom_obj", Json::object()}});
                },
                {"input 8", "custom_obj"},
                kUnimplemented},
        BadCase{"IntegerInput",
                [](Pt2Archive& a) {
                  a.signature()["input_specs"].push_back(
                      {{"user_input",
                        {{"arg", {{"as_sym_int", {{"as_name", "top"}}}}}}}});
                },
                {"input top (as_sym_int) is not a tensor"},
                kUnimplemented},
        BadCase{"BadRange",
                [](Pt2Archive& a) {
                  a.program["range_constraints"]["s36"]["min_val"] = 5000;
                },
                {"range_constraints", "s36"}},
        BadCase{"NegativeSize",
                [](Pt2Archive& a) {
                  a.SetTensor("dense", 7, {Pt2Archive::Size(-4)});
                },
                {"dense has a negative dimension"}},
        BadCase{"WeightMissing",
                [](Pt2Archive& a) { a.weights["config"].erase("l.weight"); },
                {"weight l.weight", "the archive lacks"}},
        BadCase{"PayloadMissing",
                [](Pt2Archive& a) {
                  a.weights["config"]["l.weight"]["path_name"] = "weight_7";
                },
                {"weight l.weight", "weight_7 is missing"}},
        BadCase{"Pickled",
                [](Pt2Archive& a) {
                  a.weights["config"]["l.weight"]["use_pickle"] = true;
                },
                {"weight l.weight", "pickle"},
                kUnimplemented},
        BadCase{"WeightOutsideItsEntry",
                [](Pt2Archive& a) {
                  a.weights["config"]["l.bias"] =
                      Pt2Archive::Payload("weight_1", {1}, {1}, 9);
                },
                {"weight l.bias", "reach outside its 36 bytes"}},
        BadCase{"WeightConfigMalformed",
                [](Pt2Archive& a) { a.weights = Json::array(); },
                {"model_weights_config.json"}}),
    [](const auto& info) { return info.param.name; });

TEST(TorchExportTest, SurvivesTruncation) {
  const std::string whole = Pt2Archive().Bytes();
  for (size_t bytes = 0; bytes < whole.size(); bytes += 101) {
    EXPECT_FALSE(ImportBytes(whole.substr(0, bytes)).ok()) << bytes;
  }
}

// Damages the JSON and puts a right checksum over it, so that the damage
// reaches the importer: no crash, whatever the result.
TEST(TorchExportTest, SurvivesDamagedJson) {
  const uint64_t seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const Json original = Pt2Archive().program;
  const Json flat = original.flatten();
  const Json replacements = {
      nullptr, true, -1,  INT64_MAX,     1e300,          "",
      "x",     "*",  "?", Json::array(), Json::object(), {{"as_int", -5}}};
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    Pt2Archive archive;
    for (int changes = 1 + random() % 2; changes > 0; --changes) {
      auto it = flat.begin();
      std::advance(it, random() % flat.size());
      // A leaf or one of the things around it.
      Json::json_pointer at(it.key());
      for (int up = random() % 4; up > 0 && !at.empty(); --up) {
        at = at.parent_pointer();
      }
      if (at.empty() || !archive.program.contains(at)) continue;
      archive.program[at] = replacements[random() % replacements.size()];
    }
    refused += !ImportBytes(archive.Bytes()).ok();
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace refract::models
