package io.kera.flink.sql;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import javax.xml.parsers.DocumentBuilderFactory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.w3c.dom.Document;
import org.w3c.dom.Element;
import org.w3c.dom.Node;

/** The files that a registry would get, as this build made them. */
class PublishedTest {
    private static final Path LEGAL = Path.of(System.getProperty("kera.legal"));
    private static final String SQL = "flink-sql-connector-kera";

    private static Path built(String module, String file) {
        return Path.of(System.getProperty("kera.built"), module, file);
    }

    private static ZipFile jar(String module, String kind) throws IOException {
        return new ZipFile(built(module, module + "-" + System.getProperty("kera.version") + kind + ".jar").toFile());
    }

    private static byte[] read(ZipFile jar, String name) throws IOException {
        ZipEntry entry = jar.getEntry(name);
        assertNotNull(entry, name + " is not in " + jar.getName());
        return jar.getInputStream(entry).readAllBytes();
    }

    @ParameterizedTest
    @CsvSource({
        "kera-client, ''", "kera-client, -sources", "kera-client, -javadoc", "kera-client, -tests",
        "flink-connector-kera, ''", "flink-connector-kera, -sources", "flink-connector-kera, -javadoc",
        SQL + ", ''", SQL + ", -sources", SQL + ", -javadoc"
    })
    void eachJarHasTheLicenceAndANotice(String module, String kind) throws IOException {
        try (ZipFile jar = jar(module, kind)) {
            assertArrayEquals(Files.readAllBytes(LEGAL.resolve("META-INF/LICENSE")), read(jar, "META-INF/LICENSE"));
            String notice = new String(read(jar, "META-INF/NOTICE"), StandardCharsets.UTF_8);
            assertTrue(notice.startsWith(Files.readString(LEGAL.resolve("META-INF/NOTICE"))), notice);
        }
    }

    @Test
    void theLicenceIsThatOfTheRepository() throws IOException {
        assertEquals(Files.readString(LEGAL.resolve("../../LICENSE")), Files.readString(LEGAL.resolve("META-INF/LICENSE")));
    }

    /** Whose a class is: the artifact, Kera, or the class itself where it belongs to nobody known. */
    private static String origin(String name) {
        if (name.startsWith("io/kera/shaded/airlift/")) {
            return "io.airlift:aircompressor";
        }
        if (name.startsWith("org/apache/flink/connector/base/")) {
            return "org.apache.flink:flink-connector-base";
        }
        return name.startsWith("io/kera/client/") || name.startsWith("io/kera/flink/") ? "Kera" : name;
    }

    @Test
    void theNoticeOfTheOneJarNamesWhatIsInIt() throws IOException {
        try (ZipFile jar = jar(SQL, "")) {
            String notice = new String(read(jar, "META-INF/NOTICE"), StandardCharsets.UTF_8);
            Set<String> origins = jar.stream()
                    .map(ZipEntry::getName)
                    .filter(name -> name.endsWith(".class"))
                    .map(PublishedTest::origin)
                    .collect(Collectors.toCollection(TreeSet::new));
            assertEquals(Set.of("Kera", "io.airlift:aircompressor", "org.apache.flink:flink-connector-base"), origins);
            origins.remove("Kera");
            for (String other : origins) {
                assertTrue(notice.contains("- " + other + ":"), notice);
            }
        }
    }

    @Test
    void theOneJarHasSourcesAndDocumentation() throws IOException {
        try (ZipFile sources = jar(SQL, "-sources"); ZipFile pages = jar(SQL, "-javadoc")) {
            for (String type : List.of("io/kera/flink/KeraSource", "io/kera/client/Producer")) {
                read(sources, type + ".java");
                read(pages, type + ".html");
            }
        }
    }

    private static Element pom(Path file) throws Exception {
        Document document = DocumentBuilderFactory.newInstance().newDocumentBuilder().parse(file.toFile());
        return document.getDocumentElement();
    }

    private static List<Element> children(Element of, String name) {
        List<Element> found = new ArrayList<>();
        for (Node node = of.getFirstChild(); node != null; node = node.getNextSibling()) {
            if (node instanceof Element element && element.getTagName().equals(name)) {
                found.add(element);
            }
        }
        return found;
    }

    private static String text(Element of, String name) {
        List<Element> found = children(of, name);
        return found.isEmpty() ? "" : found.get(0).getTextContent().strip();
    }

    /** In the pom of each, or in that of their parent. */
    @ParameterizedTest
    @ValueSource(strings = {"java-client", "flink", "flink-sql", "spark", "samza"})
    void eachPomSaysWhatItIsOfWhomAndUnderWhichLicence(String module) throws Exception {
        Path connectors = LEGAL.resolveSibling(module);
        Element pom = pom(connectors.resolve("pom.xml"));
        assertFalse(text(pom, "name").isEmpty());
        assertFalse(text(pom, "description").isEmpty());
        Element parent = pom(LEGAL.resolveSibling("pom.xml"));
        assertTrue(text(parent, "licenses").contains("Apache-2.0"));
        assertTrue(text(parent, "developers").contains("The authors of Kera"));
        assertEquals(text(parent, "artifactId"), text(children(pom, "parent").get(0), "artifactId"));
    }

    @Test
    void thePomOfTheOneJarNamesNothingThatIsInIt() throws Exception {
        Element pom = pom(built(SQL, "dependency-reduced-pom.xml"));
        List<String> needed = new ArrayList<>();
        for (Element all : children(pom, "dependencies")) {
            for (Element each : children(all, "dependency")) {
                String scope = text(each, "scope");
                if (!scope.equals("test") && !scope.equals("provided")) {
                    needed.add(text(each, "groupId") + ":" + text(each, "artifactId"));
                }
            }
        }
        assertEquals(List.of(), needed);
    }
}
