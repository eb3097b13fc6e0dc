#pragma once
// Typed access to the JSON of tokenizer.json: everything unexpected is an Error that names the key.

#include <memory>
#include <string>
#include <string_view>

#include "hpcdl/io/json.h"
#include "hpcdl/io/token_model.h"

namespace hpcdl::io {

/// section[key]; `where` names the section in the message.
const Json& member_of(const Json& section, const char* key, std::string_view where);
std::string text_of(const Json& section, const char* key, std::string_view where);
const Json& array_of(const Json& section, const char* key, std::string_view where);
/// The default is used for a missing key and for null.
bool flag_of(const Json& section, const char* key, bool otherwise);
TokenId id_of(const Json& value, std::string_view token);

/// The section `model`: BPE, Unigram or WordPiece. Throws Error that names anything else.
std::shared_ptr<const TokenModel> read_token_model(const Json& model, bool byte_level);

}  // namespace hpcdl::io
