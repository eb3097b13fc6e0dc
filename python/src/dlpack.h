#pragma once
// The binary interface of DLPack 1.x (dmlc/dlpack), as far as it is needed here: how frameworks pass tensors to each
// other, and the function table through which a framework does so without running Python code.

#include <cstdint>

namespace hpcdl::python::dl {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
struct Device {
  std::int32_t type, index;
};

enum Code : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };
struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major
  std::uint64_t byte_offset;
};

/// Before version 1.0: capsules named "dltensor".
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct Version {
  std::uint32_t major, minor;
};
inline constexpr std::uint32_t kMajor = 1, kMinor = 0;
inline constexpr std::uint64_t kReadOnly = 1;

/// Capsules named "dltensor_versioned".
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

/// The table in the capsule `type.__dlpack_c_exchange_api__`, named "dlpack_exchange_api". Functions return 0, or -1
/// with a Python error set.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(Tensor* like, ManagedVersioned** out, void* context,
                  void (*set_error)(void*, const char*, const char*));
  int (*export_managed)(void* object, ManagedVersioned** out);
  int (*import_managed)(ManagedVersioned* tensor, void** object);
  int (*borrow)(void* object, Tensor* out);  // may be null; valid while the object is
  int (*current_stream)(DeviceType type, std::int32_t index, void** stream);
};

}  // namespace hpcdl::python::dl
