package io.weir.flink.nativelib;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;

class NativeLibraryTest {

    @Test
    void theLibraryLiesUnderItsOperatingSystemAndArchitecture() {
        assertThat(NativeLibrary.resource())
                .matches("native/[a-z_0-9]+-[a-z_0-9]+/(lib)?weir\\.[a-z]+");
    }
}
