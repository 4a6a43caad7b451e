package io.kera.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.SaslMechanism;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.util.FlinkRuntimeException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class BuildersTest {
    @Test
    void orderNeedsAlignedCheckpoints() {
        Configuration job = new Configuration();
        assertTrue(KeraSourceBuilder.noOrder(job).contains("checkpoints"));
        job.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofSeconds(1));
        assertNull(KeraSourceBuilder.noOrder(job));
        job.set(CheckpointingOptions.ENABLE_UNALIGNED, true);
        assertTrue(KeraSourceBuilder.noOrder(job).contains("unaligned"));
    }

    @Test
    void whatIsMissingIsSaid() {
        KeraSourceBuilder<String> builder = KeraSource.builder();
        assertThrows(IllegalArgumentException.class, () -> builder.build(new Configuration()));
        builder.streams("a", "b").deserializer(KeraDeserializer.values(new SimpleStringSchema())).group("g");
        IllegalArgumentException error =
                assertThrows(IllegalArgumentException.class, () -> builder.build(new Configuration()));
        assertEquals("a group shows the positions of one stream, which is to be named", error.getMessage());
        assertThrows(IllegalArgumentException.class, () -> KeraSink.builder().build());
    }

    private static KeraSourceBuilder<String> source(Order order) {
        return KeraSource.<String>builder().bootstrap("127.0.0.1:1").streams("s").order(order)
                .deserializer(KeraDeserializer.values(new SimpleStringSchema()));
    }

    @Test
    void sharesOfKeysAreForTheOrderOfKeys() {
        assertEquals(3, source(Order.KEY).keyShares(3).settings(new Configuration()).keyShares());
        assertThrows(IllegalArgumentException.class, () -> source(Order.LANE).keyShares(3).settings(new Configuration()));
        assertThrows(IllegalArgumentException.class, () -> source(Order.KEY).keyShares(65).settings(new Configuration()));
        assertThrows(IllegalArgumentException.class, () -> source(Order.KEY).group("g").settings(new Configuration()));
    }

    @ParameterizedTest
    @EnumSource(Order.class)
    void aJobCannotGoOnInAnotherOrder(Order other) throws Exception {
        EnumeratorState key = new EnumeratorState(
                List.of(new LanePlan.State("s", true, 1, false, 1, List.of(), List.of())), List.of(), Map.of());
        KeraSource<String> source = source(other).build(new Configuration());
        if (other == Order.KEY) {
            source.restoreEnumerator(new DirectContext(), key).close();
            return;
        }
        FlinkRuntimeException refused =
                assertThrows(FlinkRuntimeException.class, () -> source.restoreEnumerator(new DirectContext(), key));
        assertTrue(refused.getMessage().contains("with another order"), refused.getMessage());
    }

    @Test
    void exactlyOnceNeedsAPrefix() {
        KeraSink.Builder<String> builder = KeraSink.<String>builder()
                .stream("s")
                .serializer(KeraSerializer.values(new SimpleStringSchema()))
                .guarantee(DeliveryGuarantee.EXACTLY_ONCE);
        IllegalArgumentException error = assertThrows(IllegalArgumentException.class, builder::build);
        assertTrue(error.getMessage().contains("transactionalIdPrefix"), error.getMessage());
        builder.transactionalIdPrefix("job").build();
        assertThrows(IllegalArgumentException.class, () -> builder.guarantee(DeliveryGuarantee.NONE));
    }

    @Test
    void aPasswordIsInNoText() {
        KeraSourceBuilder<String> builder = KeraSource.<String>builder().streams("s").login("ann", "open sesame");
        assertEquals("user ann by PLAIN", builder.mechanism(SaslMechanism.PLAIN).connection().user().toString());
        assertFalse(builder.connection().toString().contains("sesame"), builder.connection().toString());
        assertThrows(IllegalArgumentException.class, () -> builder.login("ann", ""));
        assertThrows(IllegalStateException.class, () -> KeraSink.builder().mechanism(SaslMechanism.PLAIN));
    }
}
