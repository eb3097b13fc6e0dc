#include "hpcdl/infer/kv_window.h"

#include "hpcdl/core/error.h"

namespace hpcdl::infer {

void KvWindow::check(const char* verb, std::int64_t context) const {
  if (tokens < 0 || sink < 0) fail_usage(verb, "kv-window and kv-sink must be 0 or more, got {} and {}", tokens, sink);
  if (tokens == 0 && sink > 0)
    fail_usage(verb, "kv-sink: {} first tokens are kept beside a window only: give kv-window, too", sink);
  const auto kept = (pages() - 1) * kPageTokens;
  if (any() && kept >= context)
    fail_usage(
        verb,
        "kv-window {} and kv-sink {} are {} tokens in whole pages, after which the context of {} has no room for "
        "another one: give smaller ones",
        tokens, sink, kept, context);
}

}  // namespace hpcdl::infer
