#pragma once
// The large functions of JSON values are compiled once, in json_templates.cpp: otherwise every file that uses JSON has a
// copy of them. Part of the precompiled headers, so no file includes this one.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hpcdl::json {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;
using OfString = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
using OfView = nlohmann::detail::iterator_input_adapter<std::string_view::const_iterator>;

}  // namespace hpcdl::json

extern template nlohmann::basic_json<>::basic_json(initializer_list_t, bool, value_t);
extern template nlohmann::basic_json<>::basic_json(const basic_json&);
extern template void nlohmann::basic_json<>::json_value::destroy(value_t);
extern template std::string nlohmann::basic_json<>::dump(int, char, bool, error_handler_t) const;
extern template nlohmann::basic_json<>& nlohmann::basic_json<>::operator[](std::string);
extern template class nlohmann::detail::serializer<hpcdl::json::Json>;
extern template class nlohmann::detail::json_sax_dom_parser<hpcdl::json::Json>;
extern template class nlohmann::detail::json_sax_dom_callback_parser<hpcdl::json::Json>;
extern template class nlohmann::detail::lexer<hpcdl::json::Json, hpcdl::json::OfString>;
extern template class nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfString>;
extern template bool nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfString>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_parser<hpcdl::json::Json>*);
extern template bool nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfString>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_callback_parser<hpcdl::json::Json>*);
extern template class nlohmann::detail::lexer<hpcdl::json::Json, hpcdl::json::OfView>;
extern template class nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfView>;
extern template bool nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfView>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_parser<hpcdl::json::Json>*);
extern template bool nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfView>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_callback_parser<hpcdl::json::Json>*);
extern template nlohmann::basic_json<nlohmann::ordered_map>::basic_json(initializer_list_t, bool, value_t);
extern template nlohmann::basic_json<nlohmann::ordered_map>::basic_json(const basic_json&);
extern template void nlohmann::basic_json<nlohmann::ordered_map>::json_value::destroy(value_t);
extern template std::string nlohmann::basic_json<nlohmann::ordered_map>::dump(int, char, bool, error_handler_t) const;
extern template nlohmann::basic_json<nlohmann::ordered_map>& nlohmann::basic_json<nlohmann::ordered_map>::operator[](
    std::string);
extern template class nlohmann::detail::serializer<hpcdl::json::Ordered>;
extern template class nlohmann::detail::json_sax_dom_parser<hpcdl::json::Ordered>;
extern template class nlohmann::detail::json_sax_dom_callback_parser<hpcdl::json::Ordered>;
extern template class nlohmann::detail::lexer<hpcdl::json::Ordered, hpcdl::json::OfString>;
extern template class nlohmann::detail::parser<hpcdl::json::Ordered, hpcdl::json::OfString>;
extern template bool nlohmann::detail::parser<hpcdl::json::Ordered, hpcdl::json::OfString>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_parser<hpcdl::json::Ordered>*);
extern template bool nlohmann::detail::parser<hpcdl::json::Ordered, hpcdl::json::OfString>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_callback_parser<hpcdl::json::Ordered>*);
