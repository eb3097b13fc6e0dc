// Hostile tokenizer.json files, and hostile texts for whatever loads.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/io/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hpcdl;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  try {
    // JSON up to a NUL; the last third of everything is the text.
    const auto t = io::Tokenizer::parse(all.substr(0, all.find('\0')));
    const std::string text = io::replace_invalid_utf8(all.substr(all.size() - all.size() / 3));
    const auto ids = t.encode(text, true);
    t.decode(ids);
    io::Tokenizer::parse(t.to_json());
  } catch (const Error&) {}
  return 0;
}
