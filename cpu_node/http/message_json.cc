#include "cpu_node/http/message_json.h"

#include "base/json.h"
#include "google/protobuf/descriptor.h"
#include "nlohmann/json.hpp"

namespace refract::cpu_node {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return base::FormatJson(json); }

Json ObjectOf(const Message& message);

// Element `i` of a repeated field; the value of any other field.
Json ValueOf(const Message& message, const FieldDescriptor& field, int i) {
  const Reflection& reflection = *message.GetReflection();
  const bool many = field.is_repeated();
  const auto get = [&](auto one, auto of_many) -> Json {
    return many ? (reflection.*of_many)(message, &field, i)
                : (reflection.*one)(message, &field);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat);
    case FieldDescriptor::CPPTYPE_BOOL:
      return get(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_STRING:
      return get(&Reflection::GetString, &Reflection::GetRepeatedString);
    case FieldDescriptor::CPPTYPE_ENUM:
      return (many ? reflection.GetRepeatedEnum(message, &field, i)
                   : reflection.GetEnum(message, &field))
          ->name();
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ObjectOf(many ? reflection.GetRepeatedMessage(message, &field, i)
                           : reflection.GetMessage(message, &field));
  }
  return nullptr;
}

Json ObjectOf(const Message& message) {
  // KServe's JSON has the names of the .proto file and numbers as numbers.
  // Protobuf's own JSON has camelCase names and 64-bit integers as strings.
  const Reflection& reflection = *message.GetReflection();
  Json object = Json::object();
  for (int f = 0; f < message.GetDescriptor()->field_count(); ++f) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(f);
    if (!field.is_repeated()) {
      if (field.has_presence() && !reflection.HasField(message, &field)) {
        continue;
      }
      object[field.name()] = ValueOf(message, field, 0);
      continue;
    }
    const int size = reflection.FieldSize(message, &field);
    Json& many = object[field.name()] =
        field.is_map() ? Json::object() : Json::array();
    for (int i = 0; i < size; ++i) {
      if (!field.is_map()) {
        many.push_back(ValueOf(message, field, i));
        continue;
      }
      const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
      const Json key = ValueOf(entry, *field.message_type()->map_key(), 0);
      many[key.is_string() ? key.get<std::string>() : base::FormatJson(key)] =
          ValueOf(entry, *field.message_type()->map_value(), 0);
    }
  }
  return object;
}

}  // namespace

std::string MessageToJson(const Message& message) {
  return Dump(ObjectOf(message));
}

std::string JsonString(absl::string_view text) {
  return Dump(Json(std::string(text)));
}

}  // namespace refract::cpu_node
