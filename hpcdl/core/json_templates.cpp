#include "hpcdl/core/json_templates.h"

template nlohmann::basic_json<>::basic_json(initializer_list_t, bool, value_t);
template nlohmann::basic_json<>::basic_json(const basic_json&);
template void nlohmann::basic_json<>::json_value::destroy(value_t);
template std::string nlohmann::basic_json<>::dump(int, char, bool, error_handler_t) const;
template nlohmann::basic_json<>& nlohmann::basic_json<>::operator[](std::string);
template class nlohmann::detail::serializer<hpcdl::json::Json>;
template class nlohmann::detail::json_sax_dom_parser<hpcdl::json::Json>;
template class nlohmann::detail::json_sax_dom_callback_parser<hpcdl::json::Json>;
template class nlohmann::detail::lexer<hpcdl::json::Json, hpcdl::json::OfString>;
template class nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfString>;
template bool nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfString>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_parser<hpcdl::json::Json>*);
template bool nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfString>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_callback_parser<hpcdl::json::Json>*);
template class nlohmann::detail::lexer<hpcdl::json::Json, hpcdl::json::OfView>;
template class nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfView>;
template bool nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfView>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_parser<hpcdl::json::Json>*);
template bool nlohmann::detail::parser<hpcdl::json::Json, hpcdl::json::OfView>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_callback_parser<hpcdl::json::Json>*);
template nlohmann::basic_json<nlohmann::ordered_map>::basic_json(initializer_list_t, bool, value_t);
template nlohmann::basic_json<nlohmann::ordered_map>::basic_json(const basic_json&);
template void nlohmann::basic_json<nlohmann::ordered_map>::json_value::destroy(value_t);
template std::string nlohmann::basic_json<nlohmann::ordered_map>::dump(int, char, bool, error_handler_t) const;
template nlohmann::basic_json<nlohmann::ordered_map>& nlohmann::basic_json<nlohmann::ordered_map>::operator[](
    std::string);
template class nlohmann::detail::serializer<hpcdl::json::Ordered>;
template class nlohmann::detail::json_sax_dom_parser<hpcdl::json::Ordered>;
template class nlohmann::detail::json_sax_dom_callback_parser<hpcdl::json::Ordered>;
template class nlohmann::detail::lexer<hpcdl::json::Ordered, hpcdl::json::OfString>;
template class nlohmann::detail::parser<hpcdl::json::Ordered, hpcdl::json::OfString>;
template bool nlohmann::detail::parser<hpcdl::json::Ordered, hpcdl::json::OfString>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_parser<hpcdl::json::Ordered>*);
template bool nlohmann::detail::parser<hpcdl::json::Ordered, hpcdl::json::OfString>::sax_parse_internal(
    nlohmann::detail::json_sax_dom_callback_parser<hpcdl::json::Ordered>*);
