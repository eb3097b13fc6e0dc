#pragma once
// Typed access to the JSON of tokenizer.json: every surprise is an Error that names the key.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace hpcdl::io {

/// section[key]; `where` names the section in the message.
const nlohmann::json& member_of(const nlohmann::json& section, const char* key, std::string_view where);
std::string text_of(const nlohmann::json& section, const char* key, std::string_view where);
const nlohmann::json& array_of(const nlohmann::json& section, const char* key, std::string_view where);
/// The default stands for a missing key and for null.
bool flag_of(const nlohmann::json& section, const char* key, bool otherwise);

}  // namespace hpcdl::io
