// Arguments are found by name once; operands are counted in the order of
// models::InputsOf().

#include "runtime/compile/node_args.h"

#include <variant>

namespace refract::runtime {
namespace {

// Number of operands that an argument contributes to models::InputsOf().
int CountOperands(const models::Argument& argument) {
  int count = 0;
  if (const auto* ref = std::get_if<models::ValueRef>(&argument)) {
    count = ref->id != models::kNoValue;
  } else if (const auto* list = std::get_if<models::ValueList>(&argument)) {
    for (models::ValueId id : *list) count += id != models::kNoValue;
  } else if (const auto* ints = std::get_if<models::IntList>(&argument)) {
    for (const auto& element : *ints) {
      count += element.value != models::kNoValue;
    }
  }
  return count;
}

}  // namespace

NodeArgs::NodeArgs(const models::Node& node) : node_(node) {
  // The numbering of models::InputsOf(): arguments in the node's order, values
  // in the order of each argument.
  int next = 0;
  for (const auto& argument : node.args) {
    places_.push_back({&argument, next});
    next += CountOperands(argument.value);
  }
}

const NodeArgs::Place* NodeArgs::Find(absl::string_view name) const {
  for (const Place& place : places_) {
    if (place.argument->name == name) return &place;
  }
  return nullptr;
}

bool NodeArgs::Has(absl::string_view name) const {
  const Place* place = Find(name);
  return place != nullptr &&
         !std::holds_alternative<models::None>(place->argument->value);
}

int NodeArgs::OperandOf(absl::string_view name) const {
  const Place* place = Find(name);
  if (place == nullptr) return kNoOperand;
  const auto* ref = std::get_if<models::ValueRef>(&place->argument->value);
  if (ref == nullptr || ref->id == models::kNoValue) return kNoOperand;
  return place->first_operand;
}

std::optional<std::vector<int>> NodeArgs::OperandsOf(
    absl::string_view name) const {
  const Place* place = Find(name);
  if (place == nullptr) return std::nullopt;
  const auto* list = std::get_if<models::ValueList>(&place->argument->value);
  if (list == nullptr) return std::nullopt;
  std::vector<int> operands;
  int next = place->first_operand;
  for (models::ValueId id : *list) {
    // Operands are numbered in the order of arguments, absent ones left out.
    operands.push_back(id == models::kNoValue ? kNoOperand : next++);
  }
  return operands;
}

std::optional<IntSource> NodeArgs::IntOf(const Place& place) {
  const models::Argument& value = place.argument->value;
  if (const auto* literal = std::get_if<int64_t>(&value)) {
    return IntSource{*literal, kNoOperand};
  }
  if (const auto* ref = std::get_if<models::ValueRef>(&value)) {
    if (ref->id != models::kNoValue) return IntSource{0, place.first_operand};
  }
  return std::nullopt;
}

std::optional<IntSource> NodeArgs::Int(absl::string_view name) const {
  const Place* place = Find(name);
  return place == nullptr ? std::nullopt : IntOf(*place);
}

std::optional<std::vector<IntSource>> NodeArgs::Ints(
    absl::string_view name) const {
  const Place* place = Find(name);
  if (place == nullptr) return std::nullopt;
  // PyTorch accepts one number where a list is expected.
  if (const auto single = IntOf(*place)) return std::vector<IntSource>{*single};
  const auto* list = std::get_if<models::IntList>(&place->argument->value);
  if (list == nullptr) return std::nullopt;
  std::vector<IntSource> sources;
  int next = place->first_operand;
  for (const auto& element : *list) {
    if (element.value == models::kNoValue) {
      sources.push_back({element.literal, kNoOperand});
    } else {
      sources.push_back({0, next++});
    }
  }
  return sources;
}

std::optional<int64_t> NodeArgs::IntLiteral(absl::string_view name) const {
  const auto source = Int(name);
  if (!source || !source->is_literal()) return std::nullopt;
  return source->literal;
}

std::optional<bool> NodeArgs::BoolLiteral(absl::string_view name) const {
  const Place* place = Find(name);
  if (place == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(&place->argument->value)) {
    return *flag;
  }
  // TorchScript writes some flags as numbers.
  if (const auto* number = std::get_if<int64_t>(&place->argument->value)) {
    return *number != 0;
  }
  return std::nullopt;
}

std::optional<base::DType> NodeArgs::DTypeLiteral(
    absl::string_view name) const {
  const Place* place = Find(name);
  if (place == nullptr) return std::nullopt;
  const auto* dtype = std::get_if<base::DType>(&place->argument->value);
  return dtype == nullptr ? std::nullopt : std::optional(*dtype);
}

}  // namespace refract::runtime
