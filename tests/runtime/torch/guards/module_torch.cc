// The checks of guards_torch.h for a Python test that runs operators with
// PyTorch itself. Refract does not call the operators there, so the checks are
// registered in LibTorch's dispatcher.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <string>

#include "runtime/torch/guards/guards_torch.h"

namespace refract::runtime::aten {
namespace {

// A dispatch key that precedes all others and has no kernels of its own.
// Threads that enable it call the functions registered for it first, and so do
// composite operators.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

void CheckAndCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  const OperatorRule rule = RuleOf(op.operator_name());
  TORCH_CHECK(rule.why_not.empty(), c10::toString(op.operator_name()),
              " is not run: ", rule.why_not);
  const size_t count = op.schema().arguments().size();
  rule.guard(
      std::span<c10::IValue>(stack->data() + stack->size() - count, count));
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

class Registrations {
 public:
  Registrations() : others_(torch::Library::IMPL, "_", kKey, __FILE__, 0) {
    others_.fallback(torch::CppFunction::makeFallthrough());
  }

  // Includes operators of libraries loaded since the last call.
  void AddAll() {
    for (const c10::OperatorName& op :
         c10::Dispatcher::singleton().getAllOpNames()) {
      const OperatorRule rule = RuleOf(op);
      if (rule.guard == nullptr && rule.why_not.empty()) continue;
      const std::string text = c10::toString(op);
      if (!c10::Dispatcher::singleton().findSchema(op)) continue;
      std::unique_ptr<torch::Library>& library = libraries_[text];
      if (library != nullptr) continue;
      library = std::make_unique<torch::Library>(
          torch::Library::IMPL, op.name.substr(0, op.name.find("::")), kKey,
          __FILE__, 0);
      library->impl(text.c_str(),
                    torch::CppFunction::makeFromBoxedFunction<CheckAndCall>());
    }
  }

 private:
  torch::Library others_;
  std::map<std::string, std::unique_ptr<torch::Library>> libraries_;
};

}  // namespace
}  // namespace refract::runtime::aten

// Installs the checks for all operators called on this thread. Call it after
// operator libraries are loaded; it may be called again after more libraries.
extern "C" __attribute__((visibility("default"))) void
refract_guard_operators_1() {
  static auto& registrations = *new refract::runtime::aten::Registrations;
  registrations.AddAll();
  c10::impl::tls_set_dispatch_key_included(refract::runtime::aten::kKey, true);
}
