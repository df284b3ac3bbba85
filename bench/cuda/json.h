#ifndef REFRACT_BENCH_CUDA_JSON_H_
#define REFRACT_BENCH_CUDA_JSON_H_

// Writes small JSON objects, without a library: programs of this folder build
// where only the CUDA toolkit is installed.

#include <string>
#include <utility>
#include <vector>

namespace refract::bench {

class Json {
 public:
  void Set(const std::string& key, double value);  // NaN, infinity: null
  void Set(const std::string& key, int value) {
    Set(key, static_cast<double>(value));
  }
  void Set(const std::string& key, const std::string& value);
  void Set(const std::string& key, const char* value);
  void Set(const std::string& key, bool value);
  void Set(const std::string& key, const Json& value);
  // Adds to the array `key`.
  void Append(const std::string& key, const Json& value);

  std::string Text(int indent = 0) const;
  // False when the file cannot be written; it is what it was then, as it is
  // where the process ends meanwhile.
  bool Write(const std::string& path) const;

 private:
  void SetText(const std::string& key, std::string text);

  struct Member {
    std::string key;
    std::string text;                // of a scalar or object
    std::vector<std::string> items;  // of an array, when text is empty
  };
  std::vector<Member> members_;
};

}  // namespace refract::bench

#endif  // REFRACT_BENCH_CUDA_JSON_H_
