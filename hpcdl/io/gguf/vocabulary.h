#pragma once

#include <cstdint>

#include "hpcdl/io/file.h"
#include "hpcdl/io/gguf/metadata.h"
#include "hpcdl/io/gguf/writer.h"

namespace hpcdl::io {

/// Adds the tokenizer of a model folder and its chat template, if it has them, as the values of a GGUF file with `vocab`
/// tokens: names of the form [PADi] fill it up. Throws Error for a tokenizer that GGUF has no form for.
void add_tokenizer(GgufValues& values, const fs::path& folder, std::int64_t vocab);

/// The same from the values of another GGUF file.
void copy_tokenizer(GgufValues& values, const GgufMetadata& from);

}  // namespace hpcdl::io
