/*
 * The static unwinder of libgcc asks _dl_find_object, which only glibc 2.35 and later have, for the unwind table of the
 * object that holds an address. This one asks dl_iterate_phdr, which every glibc has, and keeps the oldest glibc that the
 * library runs on independent of the compiler it was built with. Unwinding is rare here: it follows a panic.
 */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>

/* struct dl_find_object of glibc's <dlfcn.h>, written out for headers that lack it. */
struct found {
    unsigned long long flags;
    void *map_start;
    void *map_end;
    struct link_map *link_map;
    void *eh_frame;
    unsigned long long reserved[7];
};

struct search {
    uintptr_t address;
    struct found *found;
};

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    uintptr_t eh_frame = 0;
    int holds = 0;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_GNU_EH_FRAME) {
            eh_frame = start;
        } else if (header->p_type == PT_LOAD && search->address >= start && search->address - start < header->p_memsz) {
            holds = 1;
            search->found->map_start = (void *)start;
            search->found->map_end = (void *)(start + header->p_memsz);
        }
    }
    if (!holds || eh_frame == 0) {
        return holds ? -1 : 0;
    }
    search->found->flags = 0;
    search->found->link_map = 0;
    search->found->eh_frame = (void *)eh_frame;
    return 1;
}

/* Under a name of its own: newer headers declare the other with their own struct. */
__attribute__((visibility("hidden"))) int find_object(void *address, struct found *found) __asm__("_dl_find_object");

int find_object(void *address, struct found *found) {
    struct search search = {(uintptr_t)address, found};
    return dl_iterate_phdr(visit, &search) == 1 ? 0 : -1;
}
