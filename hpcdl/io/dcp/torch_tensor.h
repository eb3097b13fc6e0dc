#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/io/pickle.h"
#include "hpcdl/tensor.h"

namespace hpcdl::io::dcp {

/// The tensor that torch.save() wrote as this archive: a view into it, with the strides that it had. Calls nothing of
/// what is named in it. Throws Error, which calls the archive `from`, for anything else than one tensor of a type of
/// dtype.h whose elements lie in its storage.
View read_torch_tensor(std::string_view archive, const std::string& from);

/// The dtype of a value like torch.float32; none if it is anything else.
DType dtype_of(const pickle::Value& value);
/// "torch.float32" and so on.
std::vector<std::string_view> dtype_names();
/// "float32"; and the class of its storage, "FloatStorage", or empty if there is none.
std::string torch_name(DType dtype);
std::string_view storage_name(DType dtype);
/// The numbers of a tuple or of a torch.Size, each from 0 to kMaxCount. Throws Error that begins with `where`.
Shape shape_of(const pickle::Value& value, const std::string& where);

}  // namespace hpcdl::io::dcp
