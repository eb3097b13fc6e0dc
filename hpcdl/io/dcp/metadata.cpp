#include "hpcdl/io/dcp/metadata.h"

#include <filesystem>
#include <map>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/io/dcp/torch_tensor.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/number_within.h"
#include "hpcdl/io/pickle.h"

namespace hpcdl::io::dcp {
namespace {

using pickle::Ref;
using pickle::Value;

#define HPCDL_METADATA "torch.distributed.checkpoint.metadata."
constexpr std::string_view kMetadata = HPCDL_METADATA "Metadata", kTensor = HPCDL_METADATA "TensorStorageMetadata",
                           kBytes = HPCDL_METADATA "BytesStorageMetadata",
                           kChunk = HPCDL_METADATA "ChunkStorageMetadata",
                           kProperties = HPCDL_METADATA "TensorProperties", kIndex = HPCDL_METADATA "MetadataIndex",
                           kInfo = "torch.distributed.checkpoint.filesystem._StorageInfo";
/// Names whose objects are not looked at.
constexpr std::string_view kOthers[] = {HPCDL_METADATA "StorageMeta",
                                        HPCDL_METADATA "_MEM_FORMAT_ENCODING",
                                        "torch.Size",
                                        "torch.serialization._get_layout",
                                        "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
                                        "pathlib.PosixPath",
                                        "pathlib._local.PosixPath",
                                        "collections.OrderedDict"};
#undef HPCDL_METADATA
/// Older versions of PyTorch have the properties of a tensor here.
constexpr std::string_view kOldProperties = "torch.distributed._shard.sharded_tensor.metadata.TensorProperties";

const std::vector<std::string_view>& known_in_metadata() {
  static const auto names = [] {
    std::vector<std::string_view> list{kMetadata, kTensor, kBytes, kChunk, kProperties, kOldProperties, kIndex, kInfo};
    list.insert(list.end(), std::begin(kOthers), std::end(kOthers));
    for (const auto name : dtype_names()) list.push_back(name);
    return list;
  }();
  return names;
}

using Position = std::pair<std::string, std::vector<std::int64_t>>;  // of a chunk: its tensor and first element

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& from)
      : from_(from), document_(pickle::read(bytes, from, known_in_metadata())) {}

  Metadata read() {
    const Value& root = document_.root();
    read_places(items_of(field(root, kMetadata, "storage_data"), "storage_data"));
    Metadata out;
    for (const auto& [key, value] : items_of(field(root, kMetadata, "state_dict_metadata"), "state_dict_metadata")) {
      const auto name = name_of(*key);
      const auto* object = value->as<pickle::Object>();
      if (object && object->name == kBytes) out.others.push_back(name);
      else out.tensors.push_back(tensor(name, *value));
    }
    return out;
  }

 private:
  struct Place {
    std::string file;
    std::int64_t offset, bytes;
  };

  template <class... A> [[noreturn]] void refuse(fmt::format_string<A...> f, A&&... args) const {
    fail("io", "{}: not the metadata of a distributed checkpoint: {}", from_, fmt::format(f, std::forward<A>(args)...));
  }

  /// A field of a dataclass.
  const Value& field(const Value& value, std::string_view type, std::string_view name) const {
    const auto* object = value.as<pickle::Object>();
    if (!object || object->name != type || !object->state) refuse("expected an object of {}", type);
    const auto* found = pickle::find(*object->state, name);
    if (!found) refuse("an object of {} has no {}", type, name);
    return *found;
  }
  const pickle::Items& items_of(const Value& value, std::string_view what) const {
    const auto* dict = value.as<pickle::Dict>();
    if (!dict) refuse("expected {} to be a dictionary", what);
    return dict->items;
  }
  std::string name_of(const Value& value) const {
    const auto* text = value.as<pickle::Text>();
    if (!text || text->text.size() > kMostNameBytes) refuse("expected a name of at most {} bytes", kMostNameBytes);
    return std::string(text->text);
  }
  std::int64_t count_of(const Value& value, std::string_view what) const {
    const auto* n = value.as<std::int64_t>();
    if (!n || *n < 0 || *n > kMaxCount) refuse("expected {} from 0 to {}", what, kMaxCount);
    return *n;
  }
  Shape dims_of(const Value& value, std::string_view what) const {
    return shape_of(value, fmt::format("{}: {}", from_, what));
  }

  void read_places(const pickle::Items& items) {
    if (items.size() > kMostChunks) refuse("more than {} chunks", kMostChunks);
    for (const auto& [key, value] : items) {
      Place place{name_of(field(*value, kInfo, "relative_path")), count_of(field(*value, kInfo, "offset"), "an offset"),
                  count_of(field(*value, kInfo, "length"), "a length")};
      const std::filesystem::path path = place.file;
      if (path.empty() || path.has_parent_path() || place.file == "." || place.file == "..")
        refuse("the file {} does not lie in the folder", shown(place.file));
      const auto* object = value->as<pickle::Object>();
      const auto* transforms = pickle::find(*object->state, "transform_descriptors");
      const auto* list = transforms ? transforms->as<pickle::List>() : nullptr;
      if (transforms && !transforms->as<pickle::None>() && !(list && list->items.empty()))
        refuse("the file {} is transformed, for example compressed: save it again without", shown(place.file));
      places_.emplace(position(*key), std::move(place));
    }
  }
  Position position(const Value& index) const {
    Position p{name_of(field(index, kIndex, "fqn")), {}};
    const auto* offset = pickle::find(*index.as<pickle::Object>()->state, "offset");
    if (!offset || offset->as<pickle::None>()) return p;  // of something that is no tensor
    const Shape dims = dims_of(*offset, "the offset of a chunk");
    p.second.assign(dims.begin(), dims.end());
    return p;
  }

  DcpTensor tensor(const std::string& name, const Value& value) {
    const Value& properties = field(value, kTensor, "properties");
    DcpTensor t{name, {dims_of(field(value, kTensor, "size"), "a size"), dtype_in(properties, name)}, {}};
    const auto* chunks = field(value, kTensor, "chunks").as<pickle::List>();
    if (!chunks) refuse("expected the chunks of tensor {} to be a list", shown(name));
    chunks_ += chunks->items.size();
    if (chunks_ > kMostChunks) refuse("more than {} chunks", kMostChunks);
    for (const auto* chunk : chunks->items) t.chunks.push_back(chunk_of(t, *chunk));
    return t;
  }

  Chunk chunk_of(const DcpTensor& t, const Value& value) const {
    const Shape begin = dims_of(field(value, kChunk, "offsets"), "offsets"),
                extent = dims_of(field(value, kChunk, "sizes"), "sizes");
    const auto it = places_.find({t.name, {begin.begin(), begin.end()}});
    if (it == places_.end()) refuse("no file holds a chunk of tensor {}", shown(t.name));
    const auto& [file, offset, bytes] = it->second;
    Chunk chunk{{}, file, offset, bytes};
    if (extent != t.whole.shape) {
      chunk.part = {t.whole.shape, extent, contiguous_strides(extent), {{begin, extent, 0}}};
      whole_spec({extent, t.whole.dtype}, chunk.part, fmt::format("{}: tensor {}", from_, shown(t.name)));
    }
    return chunk;
  }

  /// The properties are pickled as a tuple that begins with the dtype, or made from it.
  DType dtype_in(const Value& properties, const std::string& name) const {
    const auto* object = properties.as<pickle::Object>();
    const auto* tuple = object && object->state ? object->state->as<pickle::Tuple>() : nullptr;
    const auto* arguments = properties.made_by(kProperties);
    const Value* value = arguments && !arguments->empty() ? arguments->front()
                         : tuple && !tuple->items.empty() ? tuple->items[0]
                         : object && object->state        ? pickle::find(*object->state, "dtype")
                                                          : nullptr;
    const auto dtype = value ? dtype_of(*value) : DType::none;
    if (dtype == DType::none) refuse("tensor {} has a type that is not supported", shown(name));
    return dtype;
  }

  const std::string& from_;
  pickle::Document document_;
  std::map<Position, Place> places_;
  std::size_t chunks_ = 0;
};

}  // namespace

Metadata parse_metadata(std::string_view bytes, const std::string& from) { return Reader(bytes, from).read(); }

}  // namespace hpcdl::io::dcp
