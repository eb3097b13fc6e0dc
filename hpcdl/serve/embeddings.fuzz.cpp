// Hostile bodies of requests for embeddings.
#include "hpcdl/serve/embeddings.h"

#include <cstddef>
#include <cstdint>

#include "hpcdl/core/error.h"
#include "hpcdl/serve/openai.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hpcdl;
  static const serve::LoadedEncoder encoder(
      {.model = std::string(HPCDL_SOURCE_DIR) + "/hpcdl/models/golden/bert", .threads = 1});
  static const serve::ModelFacts model{
      .name = "m", .tokenizer = encoder.tokenizer(), .vocab = encoder.tokenizer().vocab_size()};
  try {
    serve::read_embeddings({reinterpret_cast<const char*>(data), size}, model, encoder);
  } catch (const Error&) {
  } catch (const serve::Refusal&) {}
  return 0;
}
