#include "bench/cuda/json.h"

#include <cmath>
#include <cstdio>
#include <fstream>

namespace refract::bench {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x",
                    static_cast<unsigned>(c));
      quoted += escaped;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace

void Json::SetText(const std::string& key, std::string text) {
  for (Member& member : members_) {
    if (member.key == key) {
      member.text = std::move(text);
      return;
    }
  }
  members_.push_back({key, std::move(text), {}});
}

void Json::Set(const std::string& key, double value) {
  if (!std::isfinite(value)) return SetText(key, "null");
  char text[40];
  const bool exact = value == std::trunc(value) && std::abs(value) < 1e15;
  std::snprintf(text, sizeof(text), exact ? "%.0f" : "%.9g", value);
  SetText(key, text);
}
void Json::Set(const std::string& key, const std::string& value) {
  SetText(key, Quoted(value));
}
void Json::Set(const std::string& key, const char* value) {
  SetText(key, Quoted(value));
}
void Json::Set(const std::string& key, bool value) {
  SetText(key, value ? "true" : "false");
}
void Json::Set(const std::string& key, const Json& value) {
  SetText(key, value.Text(2));
}

void Json::Append(const std::string& key, const Json& value) {
  for (Member& member : members_) {
    if (member.key == key) {
      member.items.push_back(value.Text(4));
      return;
    }
  }
  members_.push_back({key, "", {value.Text(4)}});
}

std::string Json::Text(int indent) const {
  const std::string space(static_cast<size_t>(indent) + 2, ' ');
  std::string text = "{";
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    text += (i == 0 ? "\n" : ",\n") + space + Quoted(member.key) + ": ";
    if (!member.text.empty()) {
      text += member.text;
      continue;
    }
    text += "[";
    for (size_t item = 0; item < member.items.size(); ++item) {
      text += (item == 0 ? "\n  " : ",\n  ") + space + member.items[item];
    }
    text += "\n" + space + "]";
  }
  return text + "\n" + std::string(static_cast<size_t>(indent), ' ') + "}";
}

bool Json::Write(const std::string& path) const {
  const std::string unfinished = path + ".new";
  std::ofstream file(unfinished);
  file << Text() << "\n";
  file.close();
  if (file.good() && std::rename(unfinished.c_str(), path.c_str()) == 0) {
    return true;
  }
  (void)std::remove(unfinished.c_str());
  return false;
}

}  // namespace refract::bench
