#pragma once
// Typed access to the JSON of tokenizer.json: everything unexpected is an Error that names the key.

#include <string>
#include <string_view>

#include "hpcdl/io/json.h"

namespace hpcdl::io {

/// section[key]; `where` names the section in the message.
const Json& member_of(const Json& section, const char* key, std::string_view where);
std::string text_of(const Json& section, const char* key, std::string_view where);
const Json& array_of(const Json& section, const char* key, std::string_view where);
/// The default is used for a missing key and for null.
bool flag_of(const Json& section, const char* key, bool otherwise);

}  // namespace hpcdl::io
