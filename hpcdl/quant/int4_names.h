#pragma once

#include <string>

namespace hpcdl::int4 {

/// Names under which the parts of quantised matrix `name` ("...c_fc.weight") stand in a file.
inline std::string packed_name(const std::string& name) { return name + ".int4"; }
inline std::string scale_name(const std::string& name) { return name + ".int4_scale"; }
inline std::string offset_name(const std::string& name) { return name + ".int4_offset"; }

}  // namespace hpcdl::int4
