// Any bytes, as a GGUF file, give tensors that lie inside the file and can be decoded, and a tokenizer, or an Error.

#include <stdexcept>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/decode.h"
#include "hpcdl/io/gguf/header.h"
#include "hpcdl/io/gguf/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hpcdl::io;
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto header = parse_gguf_header(file, "fuzz");
    for (const auto& t : header.tensors) {
      if (t.offset < 24 || t.bytes < 0 || t.offset + t.bytes > static_cast<std::int64_t>(size))
        throw std::logic_error("a tensor lies outside the file");
      const auto& type = info_of(t.type);
      std::vector<float> out(static_cast<std::size_t>(t.bytes / type.bytes * type.elements));
      decode_blocks(t.type, file.data() + t.offset, t.bytes / type.bytes, out.data());
    }
    for (const auto& e : header.metadata.entries()) GgufMetadata::describe(e.value);
    end_tokens_of(header.metadata);
    chat_template_of(header.metadata, "default");
    tokenizer_of(header.metadata).encode("a b\xC3\xA9 <s>");
  } catch (const hpcdl::Error&) {}
  return 0;
}
